"""`python -m tests.golden write [words]`: write the golden files anew, or those of subjects with a word."""

import argparse
import tempfile
from pathlib import Path


def main() -> None:
    """Write what differs, and say so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["write"])
    parser.add_argument("words", nargs="*", help="Words such as holdup, sequences/throughput, example_study.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        from tests.golden import examples, sequences

        def wanted(name: str) -> bool:
            return not asked.words or any(word in name for word in asked.words)

        for path, content in (*sequences.files(wanted, Path(scratch)), *examples.files(wanted)):
            before = path.read_text() if path.exists() else None
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            if before != content:
                print(f"{path}: {'new' if before is None else 'changed'}")  # noqa: T201


if __name__ == "__main__":
    main()
