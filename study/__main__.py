"""`python -m study`: the command line."""

from study.cli import main

main()
