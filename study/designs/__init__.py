"""The kinds of study: each is a package with a `Design`, see `study.designs.base`."""
