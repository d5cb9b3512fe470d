"""This project, through what a trial of a study runs: measurement and checks of the start-up included."""

import time

from study.cluster.connection import private_ray
from study.records.records import Iteration
from study.space.parameters import SCALE
from study.space.parsing import parse_space
from study.space.space_file import Source
from study.space.spec import StudySpec
from tests.benchmarks.peers.workload import Laps, Training, Workload

DETAILS = (
    "algorithm_class",
    "learner_class",
    "module_class",
    "runner_class",
    "torch_threads_runner",
    "standardization",
    "fallbacks",
)
"""What is told of a trial's effective values; `fallbacks` is where it ran RLlib's own parts instead of ours."""


def train(workload: Workload) -> Training:
    with private_ray(num_cpus=workload.num_runners + workload.threads):
        return _train(workload)


def _train(workload: Workload) -> Training:
    from study.trial.messages import TrialConfig
    from study.trial.run import TrialRun

    spec = _spec(workload)
    setting = {**spec.fixed, SCALE: workload.num_runners}
    config = TrialConfig(
        spec=spec,
        setting=setting,
        seed=workload.seed,
        # One more than is run: the only evaluation, at the end of the budget, is never reached.
        iterations=workload.iterations + 1,
        execution="real",
        trial=0,
        attempt=1,
    )
    trial = TrialRun(config, started_s=time.perf_counter())
    laps, records = Laps(), []

    def iteration() -> int:
        records.extend(trial.advance().records)
        return int(records[-1].env_steps) - sum(laps.env_steps)

    try:
        for _ in range(workload.iterations):
            laps.time(iteration)
    finally:
        trial.close()
    effective = records[0].effective
    updates = [record.metrics["num_gradient_updates"] for record in records if isinstance(record, Iteration)]
    return Training(
        env_steps=tuple(laps.env_steps),
        seconds=tuple(laps.seconds),
        cpu_seconds=tuple(laps.cpu_seconds),
        torch_threads=effective["torch_threads_learner"],
        num_parameters=effective["num_parameters"],
        num_gradient_updates=sum(updates),
        details={name: effective[name] for name in DETAILS},
    )


def _spec(workload: Workload) -> StudySpec:
    content = {
        # What scores and solves the environment plays no part here.
        "environment": {"id": workload.env_id, "floor": -200, "reference": 240, "target": 200},
        "parameters": {
            SCALE: workload.num_runners,
            "num_envs_per_env_runner": workload.envs_per_runner,
            "train_batch_size": workload.train_batch_size,
            "minibatch_size": workload.minibatch_size,
            "num_epochs": workload.num_epochs,
            "lr": workload.lr,
            "gamma": workload.gamma,
            "lambda": workload.lambda_,
            "clip_param": workload.clip_param,
            "entropy_coeff": workload.entropy_coeff,
            "grad_clip": workload.grad_clip,
            "vf_clip_param": workload.vf_clip_param,
            "vf_loss_coeff": workload.vf_loss_coeff,
            "kl_coeff": workload.kl_coeff,
            "kl_target": workload.kl_target,
        },
        "model": {"fcnet_hiddens": list(workload.hiddens), "fcnet_activation": "tanh", "vf_share_layers": False},
        "budget": {"iterations": workload.iterations + 1},
        "search": {"num_trials": 1},
        "evaluation": {"episodes": 1, "num_evaluations": 1},
        "resources": {"num_cpus_for_main_process": workload.threads},
    }
    return parse_space(Source(name="benchmark", content=content))
