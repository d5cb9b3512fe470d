"""One session of a study: the queue, admission, the link to Ray Tune, signals, resume."""
