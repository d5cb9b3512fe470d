"""Every estimate of a study as one tidy frame; tables, figures and sentences select from it. Imports no engine."""
