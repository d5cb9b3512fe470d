"""One trial of 46 CPUs among small ones on three nodes of 16: when it starts, and how busy the cluster is kept.

The nodes are three raylets on this machine whose CPUs are only numbers, and the trials sleep. The same trials in the
same order run as a study (`study.driver.admission`) and under Tune with its defaults, the two alternating.
Utilisation: CPU-seconds of trials that ran, over all CPU-seconds from the first begin to the last end.

Every trial starts its process on the cores of this machine, a second or two of each: trials last long against that.

    python -m tests.benchmarks.utilisation [--small 40] [--seconds 60] [--repetitions 3]
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.bookkeeping import CONTENT
from tests.benchmarks.timing import ROOT, in_turns

NODES, CPUS = 3, 16
SMALL, LARGE = (3, 7), 45
"""Runners: trials of 4 and 8 CPUs, and one of 46."""
PLACE = 9
"""Where in the order the large trial stands: enough small ones before it to fill the cluster."""


def scales_of(options: argparse.Namespace) -> list[int]:
    """Return the runners of the trials, in their order."""
    small = list(itertools.islice(itertools.cycle(SMALL), options.small))
    return [*small[:PLACE], LARGE, *small[PLACE:]]


def ours(folder: Path, options: argparse.Namespace) -> None:
    from study import RunOptions, run_study
    from study.driver import run
    from study.records.request import TrialRequest
    from study.space.parsing import parse_space
    from study.space.space_file import Source
    from study.trial import trainable
    from tests.benchmarks.trivial import TrivialTrial

    scales = scales_of(options)
    parameters = {**CONTENT["parameters"], "num_env_runners": [*SMALL, LARGE]}
    search = {**CONTENT["search"], "num_trials": len(scales), "sampler": "random"}
    content = {**CONTENT, "parameters": parameters, "search": search, "execution": "real"}
    make_plan = run.make_plan

    def in_our_order(spec: Any, shape: Any, *decisions: Any) -> Any:
        nodes = tuple(replace(node, physical_cpus=CPUS) for node in shape.nodes)  # as if they had them
        plan = make_plan(spec, replace(shape, nodes=nodes), *decisions)
        requests = [
            TrialRequest(
                trial=number,
                num_env_runners=scale,
                iterations=None,
                seed=1,
                index_at_scale=scales[:number].count(scale),
            )
            for number, scale in enumerate(scales)
        ]
        return replace(plan, requests=tuple(requests))

    run.make_plan, trainable.StudyTrial = in_our_order, TrivialTrial
    run_options = RunOptions(
        name="study", out=folder, address=options.address, tracking_uri=f"sqlite:///{folder}/mlflow.db"
    )
    result = run_study(parse_space(Source(name="utilisation", content=content)), run_options)
    assert {row.status for row in result.rows} == {"finished"}


def theirs(folder: Path, options: argparse.Namespace) -> None:
    import ray
    from ray import tune

    from tests.benchmarks.trivial import TrivialTrial

    ray.init(address=options.address, log_to_driver=False)
    jobs = [{"trial": number, "num_cpus": 1 + scale} for number, scale in enumerate(scales_of(options))]
    results = tune.Tuner(
        TrivialTrial,
        param_space={"job": tune.grid_search(jobs)},
        run_config=tune.RunConfig(
            storage_path=str(folder),
            name="theirs",
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()
    assert not results.num_errors
    ray.shutdown()


def measured(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Run the trials on a new cluster and return how it went."""
    from tests.e2e.clusters import Cluster

    cluster = Cluster()
    with tempfile.TemporaryDirectory(prefix="utilisation-") as folder:
        times = Path(folder) / "times"
        times.mkdir()
        os.environ.update(TRIVIAL_SECONDS=str(options.seconds), TRIVIAL_RESULTS="3", TRIVIAL_TIMES=str(times))
        try:
            cluster.start_head(CPUS)
            for last in range(2, NODES + 1):
                cluster.add_node(CPUS, f"127.0.0.{last}")
            words = [*cluster.settings, sys.executable, "-m", "tests.benchmarks.utilisation", "--child", name]
            words += ["--folder", folder, "--address", cluster.address, "--small", str(options.small)]
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        finally:
            cluster.stop()
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        spans = [json.loads(file.read_text()) for file in times.iterdir()]
    assert len(spans) == len(scales_of(options))
    return figures_of(spans)


def figures_of(spans: list[dict[str, float]]) -> dict[str, float]:
    """Return the figures of one run from begin, end and CPUs of its trials."""
    begin, end = min(span["began"] for span in spans), max(span["ended"] for span in spans)
    busy = sum(span["num_cpus"] * (span["ended"] - span["began"]) for span in spans)
    large = max(spans, key=lambda span: span["num_cpus"])
    return {
        "utilisation": busy / (NODES * CPUS * (end - begin)),
        "large_began_s": large["began"] - begin,
        "large_rank": 1 + sum(span["began"] < large["began"] for span in spans),
        "makespan_s": end - begin,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--child", choices=["ours", "theirs"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--address")
    options = parser.parse_args()
    if options.child:
        {"ours": ours, "theirs": theirs}[options.child](options.folder, options)
        return
    shown = ("utilisation", "large_began_s", "large_rank", "makespan_s")
    runs = in_turns(("ours", "theirs"), options.repetitions, lambda name, _: measured(name, options), shown=shown)
    sizes = {"trials": len(scales_of(options)), "seconds": options.seconds, "place_of_the_large": PLACE + 1}
    print(json.dumps({"benchmark": "utilisation", **sizes, "runs": runs, "target": 0.85}))


if __name__ == "__main__":
    main()
