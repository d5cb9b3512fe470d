"""Pickles that leave a mark when somebody loads them, under every name that an engine would load by itself."""

import io
import pickle
import zipfile
from pathlib import Path

NAMES = (
    "checkpoints/trial_00000/module_state.pkl",
    "checkpoints/trial_00000/policy.msgpack",
    "checkpoints/trial_00000/class_and_ctor_args.pkl",
    "checkpoints/trial_00000/policy.pt",
    "checkpoints/trial_00001/rllib_checkpoint.pkl",
    "tuner.pkl",
    "trainable.pkl",
    "searcher-state-2026-01-01_00-00-00.pkl",
    "optuna.pkl",
    "records.pkl",
    "mlruns/model/python_model.pkl",
    "mlruns/model/data/model.pth",
    ".cache/joblib.pkl",
)
MODULES = ("sitecustomize", "orjson", "pandas", "numpy", "conftest", "study")
"""Modules that Python would take from a folder on its path."""


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
    for name in NAMES:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_torch_file(bomb(mark)) if file.suffix in (".pt", ".pth") else bomb(mark))
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")


def _torch_file(content: bytes) -> bytes:
    """Return a file as `torch.save` writes it: a pickle in an archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()
