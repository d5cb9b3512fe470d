"""`python run_study.py quickstart.yaml`: run a study. The same as `python -m study run quickstart.yaml`."""

import sys

try:
    from study.cli.commands import main_run
except ModuleNotFoundError as error:
    sys.stderr.write(
        f"{sys.executable}: must have the packages of this project, got no '{error.name}'. "
        "Fix: Run `pip install -e .` here, or activate the environment that has them.\n"
    )
    sys.exit(2)

if __name__ == "__main__":
    main_run()
