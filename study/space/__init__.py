"""Space files: the schema, its rules, and its field reference. Pure."""
