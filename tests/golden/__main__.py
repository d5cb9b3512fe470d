"""`python -m tests.golden write [words]`: write the golden files anew, or those of subjects with a word.

Words such as holdup, sequences/throughput, example_study. What differs is said.
"""

import sys
import tempfile
from pathlib import Path

from tests.golden import examples, sequences

if __name__ == "__main__":
    command, *words = sys.argv[1:] or [""]
    if command != "write":
        sys.exit(__doc__)

    def wanted(name: str) -> bool:
        return not words or any(word in name for word in words)

    with tempfile.TemporaryDirectory() as scratch:
        for path, content in (*sequences.files(wanted, Path(scratch)), *examples.files(wanted)):
            if not path.exists() or path.read_text() != content:
                path.write_text(content)
                print(f"{path}: written")  # noqa: T201
