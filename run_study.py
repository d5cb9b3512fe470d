"""`python run_study.py quickstart.yaml`: run a study. The same as `python -m study run quickstart.yaml`."""

from study.cli.commands import main_run

if __name__ == "__main__":
    main_run()
