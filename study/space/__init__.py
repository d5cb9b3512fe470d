"""What a study asks: the YAML schema, its laws and its reference. Pure."""
