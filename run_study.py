"""`python run_study.py --space quickstart.yaml`: run a study. The same as `python -m study run`, with its options."""

from study.__main__ import main

if __name__ == "__main__":
    main("run")
