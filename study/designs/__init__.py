"""The kinds of study: each has a `Design`, see `study.designs.base`."""
