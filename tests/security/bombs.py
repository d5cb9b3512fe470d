"""Pickles that leave a mark when somebody loads them, under names that an engine or Python would load by itself."""

import pickle
from pathlib import Path

POLICY = ("module_state.pkl", "policy.msgpack", "class_and_ctor_args.pkl", "policy.pt", "rllib_checkpoint.pkl")
FILES = ("tuner.pkl", "trainable.pkl", "searcher-state-2026-01-01_00-00-00.pkl", "optuna.pkl", "records.pkl")
MODULES = ("sitecustomize", "orjson", "pandas", "conftest", "study", "__main__", "__init__", "errors")
"""Modules that Python would take from a folder on its path, or from a package of that name."""


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


def bomb(mark: Path) -> bytes:
    return pickle.dumps(Bomb(mark))


def plant(folder: Path, mark: Path) -> None:
    """Put bombs into a study folder, beside what is there."""
    for name in (*(f"checkpoints/trial_00000/{name}" for name in POLICY), *FILES):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bomb(mark))
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
