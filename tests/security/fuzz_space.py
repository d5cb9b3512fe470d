"""Space files under atheris, which searches for new paths through reader and laws by their coverage.

`pip install atheris; python -m tests.security.fuzz_space [--structured] -max_total_time=600 [CORPUS_FOLDER]`

Raw: any bytes. `--structured`: the strategies of the Hypothesis tests, driven by atheris. A finding is a traceback, and
the input is kept in a file `crash-…`, which is given as argument to see it again.
"""

import sys
import tempfile
from pathlib import Path

import atheris
from hypothesis import given

with atheris.instrument_imports(include=["study", "ruamel"]):
    from tests.security import test_fuzz_space as tests
    from tests.security.yaml_texts import files


def main() -> None:
    arguments = [each for each in sys.argv if each != "--structured"]
    file = Path(tempfile.mkdtemp()) / "space.yaml"
    if "--structured" in sys.argv:
        structured = tests.MANY(given(raw=files())(lambda raw: tests.read(file, raw)))
        atheris.Setup(arguments, structured.hypothesis.fuzz_one_input)
    else:
        atheris.Setup(arguments, lambda raw: tests.read(file, raw))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
