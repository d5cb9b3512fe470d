"""What a study says first: the value, its three writers, and an answer for every kind and state of a study."""

import re
from pathlib import Path

import numpy as np
import pytest

import analysis
from analysis.answers import Answer, Number, Unknown
from tests.planted import Truth, planted_folder

EXAMPLES = Path(analysis.__file__).parent


@pytest.fixture(scope="module")
def throughput():
    return analysis.open(EXAMPLES / "example_throughput").answer(price_per_cpu_hour=0.05)


@pytest.fixture(scope="module")
def holdup():
    return analysis.open(EXAMPLES / "example_study").answer()


def test_a_throughput_study_says_its_gain_and_a_price_list(throughput):
    assert throughput.sentence.startswith("8 runners finish 3.9 times as many steps per hour as 2: 0.96 of the ideal.")
    prices = throughput.prices.frame
    assert prices["num_env_runners"].max() == 16  # nothing beyond twice the largest measured scale
    measured = prices[prices["basis"] == "measured"].set_index("num_env_runners")
    assert list(measured.index) == [2, 4, 8]
    hours = 1e6 / measured["env_steps_per_s"] / 3600
    assert np.allclose(measured["hours_per_million_steps"], hours)
    assert np.allclose(measured["hours_per_million_steps_low"], 1e6 / measured["env_steps_per_s_high"] / 3600)
    assert np.allclose(measured["cost"], hours * measured["num_cpus"] * 0.05)


def test_a_hold_up_study_names_the_setting_by_its_values(holdup):
    assert holdup.sentence == "Yes: the chosen setting learns as well with 46 runners as the best one does with 10."
    assert "lr: 1.886e-3" in holdup.setting
    assert "steps_per_env_runner: 128" in holdup.setting
    assert holdup.prices is None  # emulated clocks have no price
    assert any("execution=real" in each.command for each in holdup.unknown)
    assert not re.search(r"124918f4da25|winner|@46|folded", holdup.to_text())


@pytest.mark.parametrize("name", ["example_coinrun", "example_table"])
def test_a_search_says_which_setting_learnt_best(name):
    answer = analysis.open(EXAMPLES / name).answer()
    assert answer.setting.startswith("num_env_runners: ")
    assert len(answer.facts) <= 3
    assert len(answer.numbers) == 3


@pytest.mark.parametrize("width", [60, 80, 100])
def test_text_keeps_to_its_width_but_for_what_is_copied(throughput, holdup, width):
    for answer in (throughput, holdup):
        for line in answer.to_text(width).splitlines():
            assert len(line) <= width or line.startswith("  ")


def test_the_writers_escape_what_comes_from_a_study():
    answer = Answer(
        kind="search",
        sentence="<script>alert(1)</script> learnt best.",
        setting="lr: <b>",
        numbers=(Number(label="<i>", text="1"),),
        unknown=(Unknown(text="[x](javascript:1)", command="a < b"),),
    )
    assert "<script>" not in answer.to_html() + answer.to_markdown()
    assert "](javascript" not in answer.to_markdown()
    assert "lr: &lt;b&gt;" in answer.to_html()


@pytest.mark.parametrize("truth", [Truth(cells=((1, 2048), (4, 2048)), blocks=1), Truth(cells=((4, 2048),), failed=1)])
def test_small_studies_have_an_answer(tmp_path, truth):
    folder = planted_folder(tmp_path / "planted", truth, np.random.default_rng(1))
    answer = analysis.open(folder.path).answer()
    assert answer.sentence
    assert answer.to_text()
