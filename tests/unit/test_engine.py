"""The engine's name: one for each pair of parts, in every place that states how something scales, and in the guard."""

import os
import shlex
import subprocess
import sys

import pytest

from analysis.fingerprint import differing
from analysis.scaling.blocks import select
from analysis.scaling.clock import scaling
from study.driver.opening import RunOptions, new_identity
from study.driver.run import with_lasting_learner
from study.engine import engine_of, engine_of_space, other_engine
from study.errors import SpaceError
from study.space.parameters import SCALE
from tests.examples import example
from tests.spaces import spec


@pytest.fixture(scope="module")
def study():
    return example("example_throughput").data


@pytest.mark.parametrize(
    ("runner", "learner", "name"),
    [
        ("BatchedEnvRunner", "LeanPPOLearner", "batched+lean"),
        ("StockEnvRunner", "PPOTorchLearner", "RLlib's own"),
        ("StockMultiAgentEnvRunner", "PPOTorchLearner", "RLlib's own"),
        ("BatchedEnvRunner", "CountingIMPALALearner", "batched+RLlib"),
        ("StockEnvRunner", "MyLearner", "RLlib+MyLearner"),
        ("StockEnvRunner", None, None),
        (None, "LeanPPOLearner", None),
    ],
)
def test_what_was_built_has_a_name(runner, learner, name):
    assert engine_of({"runner_class": runner, "learner_class": learner}) == name


def test_the_other_engine_is_reached_by_its_options():
    for space in (spec(), spec(runner="stock", learner="rllib"), spec(runner="stock")):
        name, options = other_engine(space)
        changes = dict(word.split("=") for word in shlex.split(options) if word != "--set")
        assert name == engine_of_space(spec(**{"runner": space.runner, "learner": space.learner, **changes}))
        assert name != engine_of_space(space)


def test_a_comparison_across_engines_is_refused_by_that_name(study):
    runs = study.runs[study.runs["timing"] == "measured"].copy()
    text = runs["fingerprint"].astype(str)
    stock = text.str.replace("BatchedEnvRunner", "StockEnvRunner").str.replace("LeanPPOLearner", "PPOTorchLearner")
    large = runs[SCALE] == runs[SCALE].max()
    runs["fingerprint"] = text.where(~large, stock.str.replace('"runner":"batched"', '"runner":"stock"'))
    kept = runs[large | (runs[SCALE] == runs[SCALE].min())]
    found = scaling(select(kept), "strong")
    assert not found.rows
    (refusal,) = found.refusals
    apart = differing(refusal.first.fingerprint, refusal.second.fingerprint)
    assert apart["engine"] == ("batched+lean", "RLlib's own")
    assert not {name for name in apart if "class" in name or name in ("runner", "learner")}
    assert "engine (batched+lean against RLlib's own)" in refusal.reason
    assert "run both scales with one engine" in refusal.reason


@pytest.fixture
def lasting(tmp_path):
    """Return the function that gives a study its learner, and the lines that it notes."""

    def settle(space, recorded=None, obstacle=""):
        options = RunOptions(name="demo", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
        begun = None if recorded is None else new_identity(spec(), options)
        if begun is not None:
            begun.spec["learner"] = recorded
        asked = space if begun is None else begun.settle(space)
        options = {"is_new": begun is None, "jax_obstacle": obstacle, "source": "space", "note": noted.append}
        return with_lasting_learner(asked, **options).learner

    noted = []
    return settle, noted


@pytest.mark.parametrize(
    ("changes", "recorded", "obstacle", "learner", "lines"),
    [
        ({}, None, "", "fused", 0),
        ({}, None, "JAX is in use", "rllib", 1),
        ({"resources__num_learners": 2}, None, "JAX is in use", "auto", 0),
        ({}, "fused", "JAX is in use", "fused", 0),  # its trials say whether they can
        ({}, "rllib", "", "rllib", 0),
        ({"resources__num_learners": 2}, "auto", "", "auto", 0),
        ({"learner": "rllib"}, None, "", "rllib", 0),
    ],
)
def test_a_study_keeps_the_learner_of_its_start(lasting, changes, recorded, obstacle, learner, lines):
    settle, noted = lasting
    assert (settle(spec(**changes), recorded, obstacle), len(noted)) == (learner, lines)


def test_what_only_the_fused_learner_can_do_is_not_begun_without_jax(lasting):
    a2c = {"num_env_runners": [1, 2], "train_batch_size": 400}
    with pytest.raises(SpaceError, match="needs the fused learner, and JAX is in use") as caught:
        lasting[0](spec(algorithm="A2C", parameters=a2c), None, "JAX is in use")
    assert [fault.where for fault in caught.value.faults] == ["algorithm"]


@pytest.mark.parametrize(("asked", "recorded"), [("auto", "fused"), ("fused", None)])
def test_a_study_of_the_fused_learner_does_not_go_on_without_jax(lasting, monkeypatch, asked, recorded):
    monkeypatch.setattr("study.driver.run.find_spec", lambda name: None)
    with pytest.raises(SpaceError, match="learner: this study learns with `fused`, which needs JAX, got none here"):
        lasting[0](spec(learner=asked), recorded, "JAX is not installed")


@pytest.mark.parametrize(
    ("settings", "before", "usable"),
    [
        ({}, "import jax", True),
        ({}, "import jax; jax.devices()", False),
        ({"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "PJRT_NPROC": "1"},
         "import jax; jax.devices()", True),
    ],
)  # fmt: skip
def test_jax_is_used_on_one_thread_or_not_at_all(settings, before, usable):
    """The settings take effect only where JAX has not been used before."""
    code = f"""
{before}
from study.jax_private import jax_obstacle, use_one_cpu_thread
assert (jax_obstacle() is None) is {usable}, jax_obstacle()
if {usable}:
    use_one_cpu_thread()
    import jax
    assert jax.devices()[0].platform == "cpu" and jax_obstacle() is None
"""
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PJRT_NPROC")}
    done = subprocess.run([sys.executable, "-c", code], env=environment | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
