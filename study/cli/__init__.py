"""The command line: commands and everything that a person sees of them. No rule of a study lives here."""
