"""`python run_study.py --space scaling.yaml`: run a study. The same as `python -m study run`."""

from study.cli.commands import main_run

if __name__ == "__main__":
    main_run()
