"""The address that a study prints at its end opens its trials in MLflow: a real server, a real browser. No Ray."""

import pytest

from study.mirrors.mlflow_mirror import MlflowMirror, page_of
from tests.integration.mlflow_tools import Server
from tests.synthetic import append, built, closed, ended, make_folder, opened, started, sync_mlflow
from tests.values import replace
from tests.waiting import until

pytestmark = [pytest.mark.minutes, pytest.mark.packages]

CELLS = """
const index = e => Number(e.closest('[row-index]').getAttribute('row-index'));
return [...document.querySelectorAll(`[role=gridcell][col-id*='${arguments[0]}']`)]
  .sort((a, b) => index(a) - index(b)).map(e => e.innerText);
"""


def test_the_trials_of_one_study_are_listed_with_settings_and_results_the_best_first(browser, pictures, tmp_path):
    with Server(tmp_path / "server") as server:
        for study_id, returns in (("first", (10.0, 30.0, 20.0)), ("second", (40.0,))):  # one name, one experiment
            folder = make_folder(tmp_path / study_id, server.uri, study_id=study_id)
            append(folder, opened())
            for trial, value in enumerate(returns):
                end = ended(trial)
                append(
                    folder, started(trial), built(trial), replace(end, summary=end.summary | {"final_return": value})
                )
            append(folder, closed())
            sync_mlflow(folder)
        browser.get(server.uri + page_of(MlflowMirror(folder).state.experiment_id, "first"))
        until(lambda: browser.execute_script(CELLS, "final_return"), "the page lists runs")
        browser.save_screenshot(pictures / "mlflow.png")
        assert [float(text) for text in browser.execute_script(CELLS, "final_return")] == [30, 20, 10]
        for column in ("num_env_runners", "train_batch_size", "lr", "env_steps_per_s", "timing"):
            assert all(browser.execute_script(CELLS, column)), column
