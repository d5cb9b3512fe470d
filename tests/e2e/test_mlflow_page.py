"""What a person sees in MLflow: the command that a study prints, the pages in a real browser. Invented records, no Ray.

Pictures of the pages go to the folder named by STUDY_SCREENSHOTS, else to pytest's own.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from rich.console import Console

from study.cli.run import print_end
from study.driver.run import StudyResult
from study.records.folder import StudyFolder
from study.records.records import StudyClosed, TrialEnded, TrialStarted
from tests.e2e.commands import environment
from tests.integration.mlflow_tools import wait_until
from tests.synthetic import append, built, evaluation, iteration, make_folder, opened, sync_mlflow

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
Keys = webdriver.Keys

SCALES = (1, 2, 4, 2, 4, 1)
BATCHES = (400, 800, 1600, 1000, 500, 700)
RATES = (0.00025, 0.001, 0.003, 0.0005, 0.002, 0.0001)
FINAL = (410.5, 321.25, 123.75, 222.5, 99.25, 487.0)
FAILED = 4


def records_of(trial):
    """Yield the records of one trial with parameters and results of its own."""
    setting = {
        "num_env_runners": SCALES[trial],
        "train_batch_size": BATCHES[trial],
        "lr": RATES[trial],
        "minibatch_size": 128,
        "num_epochs": 10,
    }
    yield TrialStarted(
        trial=trial,
        attempt=1,
        seed=1,
        setting=setting,
        proposed={"train_batch_size": BATCHES[trial], "lr": RATES[trial]},
        iterations=None,
        anchor=None,
        optuna_number=trial,
        num_cpus=SCALES[trial] + 1,
    )
    yield built(trial)
    for number in range(1, 9):
        yield iteration(trial, number)
        if number % 2 == 0:
            yield evaluation(trial, number)
    failed = trial == FAILED
    yield TrialEnded(
        trial=trial,
        attempt=1,
        status="failed" if failed else "finished",
        reason="a planted failure" if failed else "",
        summary={
            "env_steps_per_s": 500.0 * SCALES[trial],
            "final_return": None if failed else FINAL[trial],
            "score": 0.0 if failed else FINAL[trial] / 500,
            "wall_time_s": 12.5,
        },
        checkpoint=None,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> StudyFolder:
    place = tmp_path_factory.mktemp("study")
    folder = make_folder(place / "demo", f"sqlite:///{place}/mlflow.db")
    append(folder, opened(), *(record for trial in range(len(SCALES)) for record in records_of(trial)))
    append(folder, StudyClosed(session=1, reason="complete"))
    sync_mlflow(folder)
    return folder


def printed_command(folder: StudyFolder) -> list[str]:
    """Return the words of the `mlflow ui` line that the end of a study prints."""
    result = StudyResult(
        folder=folder,
        identity=folder.identity(),
        rows=(),
        best={},
        closed=StudyClosed(session=1, reason="complete"),
        mirrors=(),
    )
    with Path(os.devnull).open("w") as nowhere:
        console = Console(width=140, record=True, file=nowhere)
        print_end(console, result, "again")
        said = console.export_text()
    (line,) = [line for line in said.splitlines() if "mlflow ui" in line]
    return shlex.split(line[line.index("mlflow ui") :])


@pytest.fixture(scope="module")
def page(folder, tmp_path_factory):
    """The address of `mlflow ui`, started as printed; only the port is another, and only this machine sees it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    program, *rest = printed_command(folder)
    words = [str(Path(sys.executable).parent / program), *rest, "--host", "127.0.0.1", "--port", str(port)]
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    place = tmp_path_factory.mktemp("ui")
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [*words, "--workers", "1"],
            cwd=place,
            env=environment() | settings,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def listens():
        assert process.poll() is None, (place / "log").read_text()
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, 60)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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


def press(browser, selector, by="css selector", seconds=10):
    """Press the first element that `selector` finds."""
    wait_until(lambda: browser.find_elements(by, selector), seconds)
    browser.find_elements(by, selector)[0].click()
    time.sleep(0.5)


@pytest.fixture(scope="module")
def experiment(folder):
    from mlflow import MlflowClient

    client = MlflowClient(folder.identity().tracking_uri)
    experiment = client.get_experiment_by_name("demo")
    runs = client.search_runs([experiment.experiment_id], "tags.`study.role` = 'trial'")
    return experiment.experiment_id, {int(run.data.tags["study.trial"]): run.info.run_id for run in runs}


COLUMNS = ("num_env_runners", "train_batch_size", "lr", "final_return")


def test_the_table_lists_every_trial_with_parameters_and_metrics(page, browser, pictures, experiment):
    number, runs = experiment
    assert len(runs) == len(SCALES)
    browser.get(f"{page}/#/experiments/{number}/runs")
    await_texts(browser, pictures / "experiment.png", "demo", f"{len(SCALES) + 1} matching runs")
    press(browser, "[role=gridcell] button")  # MLflow folds the trials below their study
    names = [f"trial {trial} · {scale} runner" for trial, scale in enumerate(SCALES)]
    await_texts(browser, pictures / "unfolded.png", *names)
    columns = "//*[normalize-space(text())='Columns']/ancestor-or-self::button"
    press(browser, columns, by="xpath")
    for name in COLUMNS:
        search = browser.find_element("css selector", "input[placeholder='Search columns']")
        search.send_keys(Keys.CONTROL, "a")
        search.send_keys(name)
        line = f"//*[contains(@class, 'tree-treenode')][normalize-space()='{name}']"
        press(browser, f"{line}//*[contains(@class, 'tree-checkbox')]", by="xpath")
    press(browser, columns, by="xpath")
    await_texts(browser, pictures / "runs.png", *names, *COLUMNS, *map(str, FINAL[:FAILED]))


def test_a_trial_shows_its_parameters_and_results(page, browser, pictures, experiment):
    number, runs = experiment
    browser.get(f"{page}/#/experiments/{number}/runs/{runs[0]}")
    wanted = [*COLUMNS, str(BATCHES[0]), str(RATES[0]), "410.5", "oversubscribed"]
    await_texts(browser, pictures / "trial.png", *wanted)


def test_a_chart_of_the_returns_has_data(page, browser, pictures, experiment):
    number, runs = experiment
    browser.get(f"{page}/#/experiments/{number}/runs/{runs[0]}/model-metrics")
    await_texts(browser, pictures / "charts.png", "eval_return")
    assert drawn(browser) > 0, "no chart has a line with points"


def test_runs_compare_side_by_side(page, browser, pictures, experiment):
    number, runs = experiment
    chosen = quote(json.dumps([runs[trial] for trial in range(len(SCALES))]))
    browser.get(f"{page}/#/compare-runs?runs={chosen}&experiments={quote(json.dumps([number]))}")
    await_texts(browser, pictures / "compare.png", "Parallel Coordinates", *COLUMNS, *map(str, BATCHES))


def drawn(browser):
    """Return the number of lines that the page's charts have drawn."""
    script = "return [...document.querySelectorAll('.js-plotly-plot .scatterlayer .trace path.js-line')].length"
    return browser.execute_script(script)
