"""Records files under atheris, which searches for new paths through the readers by their coverage.

`pip install atheris; python -m tests.security.fuzz_records [--structured] -max_total_time=600 [CORPUS_FOLDER]`

Raw: the bytes stand behind the first lines of a real study. `--structured`: the strategies of the Hypothesis tests,
driven by atheris. A finding is a traceback, and the input is kept in a file `crash-…`.
"""

import json
import sys
import tempfile
from pathlib import Path

import atheris
from hypothesis import given

with atheris.instrument_imports(include=["study", "analysis"]):
    from study.records.folder import StudyFolder
    from tests.security import test_fuzz_records as tests
    from tests.security.record_files import EXAMPLES, IDENTITIES, RECORDS, folders


def main() -> None:
    arguments = [each for each in sys.argv if each != "--structured"]
    folder = StudyFolder(Path(tempfile.mkdtemp()))
    if "--structured" in sys.argv:

        @tests.MANY
        @given(content=folders())
        def structured(content: tuple[bytes, bytes, bool]) -> None:
            tests.write(folder, *content)
            tests.read_all(folder)

        atheris.Setup(arguments, structured.hypothesis.fuzz_one_input)
    else:
        identity = json.dumps(IDENTITIES[EXAMPLES[0]]).encode()
        sound = b"".join(RECORDS[EXAMPLES[0]][:2])

        def one_input(raw: bytes) -> None:
            tests.write(folder, identity, sound + raw)
            tests.read_all(folder, ("ledger", "runs"))  # the ways that the others begin with

        atheris.Setup(arguments, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
