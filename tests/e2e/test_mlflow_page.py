"""What a person sees in MLflow: the command that a study prints, the pages in a real browser. Invented records, no Ray.

Pictures of the pages go to the folder named by STUDY_SCREENSHOTS, else to pytest's own.
"""

import json
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from mlflow import MlflowClient
from rich.console import Console

import analysis
from study.cli.run import print_end
from study.cli.sync import show_answer
from study.driver.run import StudyResult
from study.records.folder import StudyFolder
from study.records.records import StudyClosed
from tests.integration.mlflow_tools import Server
from tests.synthetic import append, built, ended, evaluation, iteration, make_folder, opened, started, sync_mlflow
from tests.values import replace

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")


@dataclass
class Study:
    """A study and its page."""

    folder: StudyFolder
    page: str
    address: str

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(self.folder.identity().tracking_uri)

    @property
    def experiment(self) -> str:
        return self.client.get_experiment_by_name("demo").experiment_id

    def runs(self, role: str) -> dict[int, str]:
        found = self.client.search_runs([self.experiment], f"tags.`study.role` = '{role}'")
        return {int(run.data.tags.get("study.trial", 0)): run.info.run_id for run in found}


SCALES = (1, 2, 4, 2, 4, 1)
BATCHES = (400, 800, 1600, 1000, 500, 700)
RATES = (0.00025, 0.001, 0.003, 0.0005, 0.002, 0.0001)
FINAL = (410.5, 321.25, 123.75, 222.5, 99.25, 487.0)
FAILED = 4


def records_of(trial):
    """Yield the records of one trial with parameters and results of its own."""
    proposed = {"train_batch_size": BATCHES[trial], "lr": RATES[trial]}
    setting = {"num_env_runners": SCALES[trial], "minibatch_size": 128, "num_epochs": 10, **proposed}
    yield replace(started(trial, runners=SCALES[trial]), setting=setting, proposed=proposed)
    yield built(trial)
    for number in range(1, 9):
        yield iteration(trial, number)
        if number % 2 == 0:
            yield evaluation(trial, number)
    failed, rate = trial == FAILED, 500.0 * SCALES[trial]
    final, score = (None, 0.0) if failed else (FINAL[trial], FINAL[trial] / 500)
    summary = {"env_steps_per_s": rate, "final_return": final, "score": score, "wall_time_s": 12.5}
    yield replace(ended(trial, "failed" if failed else "finished"), summary=summary)


@pytest.fixture(scope="module", params=["SQLite", "server"])
def study(request, tmp_path_factory):
    """A study in MLflow, and the address that the end of its run prints, served as printed; only the port is another.

    The address is that of a store with `mlflow ui`, or that of a server.
    """
    place = tmp_path_factory.mktemp("study")
    server = Server(place)
    if request.param == "server":
        server.start()
    uri = server.uri if request.param == "server" else f"sqlite:///{place}/mlflow.db"
    folder = make_folder(place / "demo", uri)
    append(folder, opened(), *(record for trial in range(len(SCALES)) for record in records_of(trial)))
    append(folder, StudyClosed(session=1, reason="complete"))
    sync_mlflow(folder)
    assert show_answer(folder, uri) == ""
    command, address = printed(folder)
    if command:
        place, port = tmp_path_factory.mktemp("elsewhere"), server.port
        more = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        server.start(command=[str(Path(sys.executable).parent / command[0]), *command[1:], *more], cwd=place)
        address = address.replace(":5000", f":{port}")
    try:
        yield Study(folder, address.partition("/#")[0], address)
    finally:
        server.stop()


def printed(folder: StudyFolder) -> tuple[list[str], str]:
    """Return the words of the `mlflow ui` line that the end of a study prints, if any, and the address to open."""
    result = StudyResult(
        folder=folder,
        identity=folder.identity(),
        rows=(),
        closed=StudyClosed(session=1, reason="complete"),
        mirrors=(),
    )
    with Path(os.devnull).open("w") as nowhere:
        console = Console(width=140, record=True, file=nowhere)
        print_end(console, result, "again")
        said = console.export_text()
    commands = [shlex.split(line[line.index("mlflow ui") :]) for line in said.splitlines() if "mlflow ui" in line]
    (address,) = [word for word in said.split() if "/#/experiments" in word]
    return (commands[0] if commands else []), address


def text(browser):
    return browser.execute_script("return document.body ? document.body.innerText : ''")


def await_texts(browser, picture, *wanted, seconds=30):
    """Wait until the page shows all of `wanted`; take its picture in any case."""
    end = time.monotonic() + seconds
    while missing := [word for word in wanted if word not in text(browser)]:
        if time.monotonic() > end:
            break
        time.sleep(0.3)
    time.sleep(1)  # for the picture: charts are drawn after their titles
    browser.save_screenshot(str(picture))
    assert not missing, f"not on the page: {missing}; the page says: {text(browser)[:3000]}"


COLUMNS = ("num_env_runners", "train_batch_size", "lr", "final_return", "score", "env_steps_per_s", "wall_time_s")
NAMES = [f"trial {trial} · {scale} runner" for trial, scale in enumerate(SCALES)]


def test_the_printed_address_opens_the_trials(study, browser, pictures):
    browser.get(study.address)
    await_texts(browser, pictures / "first.png", *NAMES, "Model training")


def test_the_run_of_the_study_shows_the_answer(study, browser, pictures):
    (run,) = study.runs("study").values()
    browser.get(f"{study.page}/#/experiments/{study.experiment}/runs/{run}")
    sentence = analysis.open(study.folder.path).answer().sentence
    await_texts(browser, pictures / "study.png", sentence, "run demo.yaml")


def test_a_trial_shows_its_parameters_and_results(study, browser, pictures):
    run = study.runs("trial")[0]
    browser.get(f"{study.page}/#/experiments/{study.experiment}/runs/{run}")
    wanted = [*COLUMNS, str(BATCHES[0]), str(RATES[0]), "410.5", "CartPole-v1"]
    await_texts(browser, pictures / "trial.png", *wanted)


def test_the_comparison_of_chosen_runs_shows_parameters_and_results(study, browser, pictures):
    chosen = quote(json.dumps([run for trial, run in study.runs("trial").items() if trial != FAILED]))
    browser.get(f"{study.page}/#/compare-runs?runs={chosen}&experiments={quote(json.dumps([study.experiment]))}")
    await_texts(browser, pictures / "compare.png", "Parallel Coordinates", *COLUMNS, *map(str, BATCHES[:FAILED]))
