"""`python run_study.py --space quickstart.yaml`: run a study. The same as `python -m study run`, with its options."""

from study.missing import told_to_install

with told_to_install():
    from study.cli.commands import main_run

if __name__ == "__main__":
    main_run()
