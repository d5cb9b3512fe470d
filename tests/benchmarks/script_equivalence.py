"""Does a script learn under a study what it learns by itself? Two one-sided tests over ten seeds each.

    python -m tests.benchmarks.script_equivalence [--seeds 10] [--env-steps 12000] [--execution real]

`tests/scripts/cartpole_ppo.py` is studied unedited by the real command, one trial for each seed; and its configuration
is built and trained by RLlib alone with the same seeds, as its own loop does. Both policies then play the same episodes
greedily, cut after 200 steps; a score is the mean return over 200. The scores are equivalent when their means differ by
less than 0.1 with 95 % confidence (`tests.benchmarks.equivalence`). No times are compared. The last line is JSON.
"""

import argparse
import csv
import json
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "cartpole_ppo.py"
CUT = 200
EVALUATION = {"episodes": 50, "num_evaluations": 1, "max_episode_steps": CUT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--env-steps", type=int, default=12_000)
    parser.add_argument("--execution", choices=["auto", "real", "emulated"], default="auto")
    parser.add_argument("--keep", type=Path, help="folder for the study and the logs")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)  # the second process: where its scores go
    options = parser.parse_args()
    seeds = list(range(1, options.seeds + 1))
    if options.alone is not None:
        scores = []
        for seed in seeds:
            scores.append(_alone(seed, options.env_steps))
            print(f"seed {seed}: {scores[-1]:.3f}", flush=True)
        options.alone.write_text(json.dumps(scores))
        return
    from tests.benchmarks.equivalence import LEVEL, MARGIN, equivalence
    from tests.benchmarks.timing import end_on_sigterm, machine, versions

    end_on_sigterm()
    about = machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        running = [
            _start_study(folder, seeds, options.env_steps, options.execution),
            _start_alone(folder, sys.argv[1:]),
        ]
        try:
            for name, process in zip(("study", "alone"), running, strict=True):
                if process.wait():
                    log = (folder / f"{name}.log").read_text()[-2000:]
                    sys.exit(f"{name} must end well, it did not:\n{log}")
        finally:
            for process in running:
                process.terminate()
                process.wait()
        with (folder / "studies" / "script" / "trials.csv").open() as table:
            rows = list(csv.DictReader(table))
        scores = [float(row["final_return"]) / CUT for row in rows]
        engines = sorted({row["engine"] for row in rows})
        alone = json.loads((folder / "alone.json").read_text())
    test = equivalence(scores, alone)
    studied, itself = test.pop("samples")
    print(
        f"under the study ({', '.join(engines)}) {studied['mean']:.3f} (sd {studied['sd']:.3f}, n={studied['n']}), by "
        f"itself {itself['mean']:.3f} (sd {itself['sd']:.3f}, n={itself['n']}); difference {test['difference']:+.3f}, "
        f"90 % interval {test['interval'][0]:+.3f} to {test['interval'][1]:+.3f}, p={test['p']:.4f}: "
        f"{'equivalent' if test['equivalent'] else 'NOT SHOWN'} within {MARGIN}"
    )
    record = {"benchmark": "script_equivalence", "margin": MARGIN, "level": LEVEL, "engines": engines}
    record |= {"study": studied, "alone": itself, **test}
    print(json.dumps({**record, **about, "versions": versions(["ray", "torch", "gymnasium"])}))


def _start_study(folder: Path, seeds: list[int], env_steps: int, execution: str) -> "subprocess.Popen[bytes]":
    space = folder / "space.yaml"
    content = {
        "config": str(SCRIPT),
        "execution": execution,
        "budget": {"env_steps": env_steps},
        "search": {"sampler": "grid", "seeds": seeds},
        "evaluation": EVALUATION,
        "parameters": {"num_env_runners": 1},
    }
    space.write_text(json.dumps(content))  # JSON is YAML
    command = [sys.executable, "run_study.py", "--space", str(space), "--out", str(folder / "studies")]
    command += ["--name", "script", "--tracking-uri", f"sqlite:///{folder}/mlflow.db"]
    with (folder / "study.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def _start_alone(folder: Path, arguments: list[str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.benchmarks.script_equivalence", *arguments]
    with (folder / "alone.log").open("ab") as log:
        return subprocess.Popen([*command, "--alone", str(folder / "alone.json")], stdout=log, stderr=subprocess.STDOUT)


def _alone(seed: int, env_steps: int) -> float:
    """Return the score of the script's configuration, trained by RLlib alone."""
    from study.space.parsing import parse_space
    from study.space.space_file import Source
    from study.trial.script_evaluation import evaluate_script, state_of

    content = {"environment": {"id": "CartPole-v1"}, "budget": {"env_steps": env_steps}, "evaluation": EVALUATION}
    content |= {"parameters": {"num_env_runners": 1}, "search": {"num_trials": 1}}
    spec = parse_space(Source(name="evaluation", content=content, lines={}))
    config = runpy.run_path(str(SCRIPT))["config"]
    algorithm = config.debugging(seed=seed).build_algo()
    try:
        while algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"] < env_steps:
            pass
        returns = evaluate_script(algorithm.config, state_of(algorithm), spec).returns
    finally:
        algorithm.stop()
    return sum(returns) / len(returns) / CUT


if __name__ == "__main__":
    main()
