"""Records or MLflow -> tables and figures. Never imports Ray, torch or `study.trial`."""
