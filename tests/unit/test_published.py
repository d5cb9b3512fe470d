import pytest

from analysis.published import audit, claims, learner_ceiling
from study.errors import AnalysisError


def test_the_two_node_claim_is_refused_since_its_batch_changed():
    table = audit(claims(), "two nodes").frame
    assert table["karp_flatt"].tolist()[1] == pytest.approx(-0.315, abs=5e-4)
    assert table["verdict"][1] == "refused: 8,000 steps an iteration against 2,000"


def test_a_batch_that_doubled_in_silence_is_seen_from_rate_and_time():
    # 4000 // 24 = 166 steps a runner make 3984, one round short of 4000: RLlib sampled a second one.
    table = audit(claims(), "72 CPUs").frame.set_index("num_env_runners")
    assert table.loc[24, "batch"] == pytest.approx(2 * 24 * 166, abs=1)
    assert table.loc[64, "batch"] == pytest.approx(2 * 64 * 62, abs=1)
    assert table.loc[24, "verdict"].startswith("refused")
    assert table.loc[16, "verdict"] == "1.77x for 16x the runners in sampling, 1.66x in the whole run"


def test_cells_on_other_machines_are_not_compared():
    assert audit(claims(), "laptop or nodes").frame["verdict"][1].startswith("refused: chartreuse")


def test_cells_whose_batch_nobody_published_are_not_compared():
    for claim in ("46 workers", "ten workers"):
        table = audit(claims(), claim)
        frame = table.frame
        assert frame["verdict"][1] == "batch not published: cannot be compared"
        assert frame["karp_flatt"].isna().all()
        assert table.conclusion == "The comparison cannot be made: the batch was not published."
    assert audit(claims(), "46 workers").frame["speed_up_time"][1] == pytest.approx(624 / 824)
    known = audit(claims(), "one ray.init")  # rate x sampling time says it
    assert known.conclusion.startswith("Batch and hardware are equal as far as published")
    assert known.frame["karp_flatt"].notna()[1:].all()


def test_what_learning_takes_bounds_what_runners_can_give():
    assert learner_ceiling(claims(), "no parallelism") == pytest.approx((0.498714 + 2.271886) / 2.271886)
    with pytest.raises(AnalysisError, match="times of sampling and learning"):
        learner_ceiling(claims(), "two nodes")


def test_an_unknown_claim_is_told_with_the_known_ones():
    with pytest.raises(AnalysisError, match=r"one of two nodes, .* got 'two node'"):
        audit(claims(), "two node")
