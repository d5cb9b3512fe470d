"""The engine's name: one for each pair of parts, in every place that states how something scales, and in the guard."""

import functools
import os
import shlex
import subprocess
import sys

import pytest

from analysis.fingerprint import differing
from analysis.scaling.blocks import select
from analysis.scaling.clock import scaling
from study.driver.opening import RunOptions, new_identity
from study.driver.run import settled, tried
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


@pytest.mark.parametrize(
    ("changes", "obstacle", "learner", "lines"),
    [
        ({}, "", "fused", 0),
        ({}, "JAX is in use", "rllib", 1),
        ({"resources__num_learners": 2}, "JAX is in use", "auto", 0),
        ({"learner": "rllib"}, "", "rllib", 0),
        ({"learner": "fused"}, "observations are images", "fused", 0),  # its trials say whether they can
    ],
)
def test_a_new_study_settles_its_learner(changes, obstacle, learner, lines):
    noted = []
    space = settled(spec(**changes), sharing="harmless", fused_obstacle=obstacle, source="space", note=noted.append)
    assert (space.learner, len(noted)) == (learner, lines)


@pytest.mark.parametrize(
    ("changes", "recorded"), [({}, "fused"), ({}, "rllib"), ({"resources__num_learners": 2}, "auto")]
)
def test_a_resumed_study_keeps_the_learner_of_its_start_or_says_that_it_needs_jax(
    tmp_path, monkeypatch, changes, recorded
):
    begun = new_identity(spec(), RunOptions(name="demo", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db"))
    begun.spec["learner"] = recorded
    again = functools.partial(tried, begun.settle(spec(**changes)), is_new=False, source="space", note=print)
    assert again()[0].learner == recorded
    monkeypatch.setattr("study.driver.run.find_spec", lambda name: None)
    if recorded == "fused":
        with pytest.raises(SpaceError, match="learner: this study learns with `fused`, which needs JAX, got none here"):
            again()


def test_what_only_the_fused_learner_can_do_is_not_begun_without_jax():
    space = spec(algorithm="A2C", parameters={"num_env_runners": [1, 2], "train_batch_size": 400})
    with pytest.raises(SpaceError, match="algorithm: `A2C` needs the fused learner, and JAX is in use"):
        settled(space, sharing="harmless", fused_obstacle="JAX is in use", source="space", note=print)


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
