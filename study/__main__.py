"""`python -m study`: the command line."""

import gc

# Python's search for cycles among objects takes a seventh of a short command's time, and finds next to nothing.
gc.set_threshold(200_000, 20, 100)

from study.missing import told_to_install  # noqa: E402 (imports make most of the objects)

with told_to_install():
    from study.cli.commands import main

main()
