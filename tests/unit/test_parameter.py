"""A parameter is one entry of `study.space.parameters`: whoever adds one has no other file to touch."""

import subprocess
import sys
from pathlib import Path

from study.space import parameters

ADDED = """
import dataclasses

_ALL = (*_ALL, dataclasses.replace(
    {each.name: each for each in _ALL}["gamma"],
    name="tau", default=1.0, algorithms=("APPO",), meaning="Share of the weights that the target network takes over.",
))

PARAMETERS: """
SHOWS_IT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("study.space.parameters", sys.argv[1])
sys.modules["study.space.parameters"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

from types import SimpleNamespace
import pytest
from analysis.load.columns import RUN_COLUMNS
from study.errors import SpaceError
from study.trial.run import _values_of_module
from study.trial.experiment import experiment_of
from tests.integration.trials import built_config
from tests.spaces import spec

appo = {"algorithm": "APPO", "parameters__minibatch_size": None}
assert spec(**appo, parameters__tau={"low": 0.1, "high": 0.9}).tuned["tau"].low == 0.1
assert spec(**appo, parameters__tau=0.25).fixed["tau"] == 0.25
for wrong in ({**appo, "parameters__tau": 1.5}, {"parameters__tau": 0.5}):
    with pytest.raises(SpaceError, match="parameters.tau"):
        spec(**wrong)
config = built_config(algorithm="APPO", setting={"tau": 0.25}, budget__env_steps=9000)
assert config.tau == 0.25 and not config.fallbacks
module = SimpleNamespace(unwrapped=lambda: None)
learner = SimpleNamespace(
    config=SimpleNamespace(get_config_for_module=lambda _: config),
    module={"m": module}, get_optimizers_for_module=lambda _: [],
)
assert _values_of_module(learner, "m")["tau"] == 0.25
assert RUN_COLUMNS["tau"].dtype == "Float64"
"""


def test_a_parameter_is_declared_in_one_file(tmp_path: Path) -> None:
    """A space may fix or vary it, a trial sets it and reads it back, and it is a column of the frame of trials."""
    file = tmp_path / "parameters.py"
    file.write_text(Path(parameters.__file__).read_text().replace("\nPARAMETERS: ", ADDED, 1))
    done = subprocess.run([sys.executable, "-c", SHOWS_IT, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
