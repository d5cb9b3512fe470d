"""A hold-up study by the real commands: stage by stage, killed, resumed, certified, verified, exported."""

import json
import re
import shlex
import sys

import optuna
import pytest

from tests.e2e.commands import ray_processes, run, study
from tests.e2e.drivers import Driver

SPACE = """
environment: {id: CartPole-v1, floor: 10, reference: 60, target: 20}
parameters:
  num_env_runners: [1, 3]
  num_envs_per_env_runner: 2
  steps_per_env_runner: {low: 32, high: 128, log: true}
  minibatch_size: 32
  num_epochs: 2
  lr: {low: 1.0e-3, high: 1.0e-2, log: true}
evaluation: {episodes: 2, num_evaluations: 2}
execution: emulated
budget: {env_steps: 600}
holdup:
  target_scale: 3
  small_scale: 1
  naive_steps_per_env_runner: 100
  num_settings: 4
  race: {num_settings: 2, blocks: [1, 1]}
  confirm: {num_seeds: 5, num_seeds_rllib: 2}
  seed: 4
  unseen_scales: [2]
  solved_share: 0.2
"""


@pytest.fixture
def driver(tmp_path):
    driver = Driver(tmp_path, space=SPACE)
    yield driver
    driver.stop()
    assert not ray_processes(), "a Ray was left running"


@pytest.mark.minutes
def test_a_hold_up_study_from_search_to_export(driver):
    folder, place = driver.folder, driver.place
    assert driver.run("--until", "search") == 0, driver.said
    assert "the stages up to search are complete, race comes next" in driver.said
    to_resume = shlex.split(driver.said.partition("Resume with: ")[2].splitlines()[0])
    assert "--until" not in to_resume
    assert "trials" in run(study(*to_resume[3:], "--dry-run"), place).stdout
    assert "--resume" in run(study("certificate", "write", folder), place, codes=(2,)).stderr

    driver.start()
    driver.wait_for("trial_ended", 12)
    driver.kill()
    assert driver.run() == 0, driver.said
    assert re.search(r"^(Yes|No|Not shown): .*with 3 of RLlib's own runners", driver.said, flags=re.MULTILINE)
    assert "Certificate, with every rule and interval: studies/space/certificate.md" in driver.said

    found = driver.records()
    assert [record.kind for record in found].index("settings_frozen") < next(
        index
        for index, record in enumerate(found)
        if record.kind == "trial_started" and record.seed in range(4201, 4206)
    )
    stock = [record for record in found if record.kind == "trial_started" and record.variant == "stock"]
    built = {record.trial: record for record in found if record.kind == "trial_built"}
    assert sorted(record.setting["num_env_runners"] for record in stock) == [1, 1, 3, 3]
    assert {built[record.trial].effective["runner_class"] for record in stock} == {"StockEnvRunner"}
    hosted = {built[record.trial].timing_reason for record in stock if record.setting["num_env_runners"] == 3}
    assert hosted == {"lanes of 3 runners stepped in 1 process"}
    ended = [record.trial for record in driver.attempts("finished")]
    assert sorted(ended) == sorted(set(ended))
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "optuna.journal")))
    (summary,) = optuna.get_all_study_summaries(storage)
    assert summary.n_trials == 4

    run(study("certificate", "verify", folder), place)
    file = folder / "certificate.json"
    content = json.loads(file.read_text())
    content["winner"]["digest"] = "0" * 12
    file.write_text(json.dumps(content))
    assert "winner.digest" in run(study("certificate", "verify", folder), place, codes=(2,)).stderr

    (place / "exported.py").write_text(run(study("export", folder, "--scale", "3"), place).stdout)
    seed = next(record.seed for record in stock if record.anchor == "winner_rllib")
    start = "import ray, runpy; ray.init(num_cpus=8); runpy.run_path('exported.py', run_name='__main__')"
    trained = run([sys.executable, "-c", start, str(seed)], place)
    lines = [line.split("\t") for line in trained.stdout.splitlines() if line[0].isdigit()]
    number = next(each.trial for each in stock if (each.anchor, each.seed) == ("winner_rllib", seed))
    recorded = [each for each in found if each.kind == "iteration" and each.trial == number]
    assert [int(one) for one, *_ in lines] == [each.iteration for each in recorded]
    # A step that only resets an environment is not counted, and episodes end elsewhere: lanes have other seeds.
    for (_, steps, _), each in zip(lines, recorded, strict=True):
        assert abs(float(steps) - each.env_steps) <= 6 * each.iteration
    table = run(study("export", folder, "--scale", "2", "--format", "yaml"), place)
    assert "train_batch_size" in table.stdout
