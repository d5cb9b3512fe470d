"""`python -m study`: the command line."""

from study.cli.commands import main

main()
