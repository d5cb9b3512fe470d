"""The exported script configures RLlib as the study itself would."""

from pathlib import Path

from study.designs.holdup.certificate.export import export_python
from study.space.algorithms import ALGORITHMS
from study.trial.algorithm import build_config
from study.trial.engine.envs.probing import probe
from tests import holdup


def test_the_script_builds_the_configuration_of_the_study(tmp_path: Path) -> None:
    spec = holdup.holdup_spec()
    folder = holdup.write_study(tmp_path / "demo", spec, holdup.study_records(spec))
    script: dict[str, object] = {"__name__": "export"}
    exec(compile(export_python(folder, 6), "export.py", "exec"), script)
    theirs = script["make_config"](seed=5)  # type: ignore[operator]
    theirs.validate()
    setting = holdup.winner_setting(folder, 6)
    ours = build_config(spec, setting=setting, seed=5, spaces=probe(spec.environment, ""), execution="real")
    assert theirs.total_train_batch_size == setting["train_batch_size"]
    for name in (
        *({"lambda": "lambda_"}.get(name, name) for name in ALGORITHMS["PPO"].parameters if name != "train_batch_size"),
        "train_batch_size_per_learner",
        "grad_clip_by",
        "rollout_fragment_length",
        "num_learners",
        "seed",
        "model_config",
        "num_cpus_for_main_process",
        "placement_strategy",
        "batch_mode",
        "observation_filter",
    ):
        assert getattr(theirs, name) == getattr(ours, name), name
    env = script["make_env"]()  # type: ignore[operator]
    assert env.observation_space.dtype == "float32"
    assert env.reset(seed=1)[0].dtype == "float32"
    env.close()
