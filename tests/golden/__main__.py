"""`python -m tests.golden write [words]`: write the golden files anew, or those whose path contains a word."""

import argparse
import os
import tempfile


def main() -> None:
    """Write what differs, and say so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["write"])
    parser.add_argument("words", nargs="*", help="Only files whose path contains one of these.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        from tests.golden import plans

        for path, content in plans.files().items():
            if asked.words and not any(word in str(path) for word in asked.words):
                continue
            before = path.read_text() if path.exists() else None
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
            if before != content:
                print(f"{path}: {'new' if before is None else 'changed'}")  # noqa: T201


if __name__ == "__main__":
    main()
