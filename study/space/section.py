"""The base of every block of a space file. Pure."""

from pydantic import ConfigDict

from study.space.domains import Model


class Section(Model):
    """A block of a space file; the text below each field is its description in the schema and the field reference."""

    model_config = ConfigDict(use_attribute_docstrings=True)
