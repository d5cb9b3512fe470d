"""`python -m study`: the command line."""

import gc

# Python's search for cycles among objects takes a seventh of a short command's time, and finds next to nothing.
gc.set_threshold(200_000, 20, 100)

from study.cli.commands import main  # noqa: E402 (imports make most of the objects)

main()
