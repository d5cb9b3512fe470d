"""The recorded studies that come with the project, each opened once by a worker of the tests."""

import functools
from pathlib import Path

import analysis
from analysis.opened import Study

ANALYSIS = Path(analysis.__file__).parent


@functools.cache
def example(name: str) -> Study:
    """Return a recorded study by the name of its folder, such as `example_study`; who changes it makes a copy."""
    return analysis.open(ANALYSIS / name)
