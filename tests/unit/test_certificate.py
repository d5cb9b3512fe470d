"""A certificate and its decisions are what the records lead to; what differs is named by its place."""

import json
import math
import shutil
from pathlib import Path

import msgspec
import pytest

import analysis
from study.designs.holdup.certificate import make_certificate, verify, write_certificate
from study.errors import RecordError
from study.records.folder import StudyFolder
from study.records.records import StageDecided, TrialEnded, TrialStarted
from tests import holdup
from tests.recompute import differing
from tests.spaces import spec as plain_spec
from tests.values import replace


@pytest.fixture(scope="module")
def spec():
    return holdup.holdup_spec()


@pytest.fixture(scope="module")
def records(spec):
    return holdup.study_records(spec)


@pytest.fixture(scope="module")
def study(spec, records, tmp_path_factory):
    folder = holdup.write_study(tmp_path_factory.mktemp("study") / "demo", spec, records)
    write_certificate(folder)
    return folder


@pytest.fixture(scope="module")
def certificate(study):
    return make_certificate(study)


@pytest.fixture
def touched(study, tmp_path):
    """A copy to tamper with."""
    return StudyFolder(Path(shutil.copytree(study.path, tmp_path / "demo")))


def certified(path, spec, outcome=holdup.outcome):
    """Write an invented study with its certificate, verify it, and return it."""
    folder = holdup.write_study(path, spec, holdup.study_records(spec, outcome))
    content = write_certificate(folder)
    verify(folder.path)
    return content


def any_outcome(number):
    """Return what trials of a study come to: each arm has a mean, a spread and a share of failures of its own."""

    def outcome(row):
        if row.anchor is None:  # nobody knows yet which setting becomes which arm
            return holdup.outcome(row)
        arm = (number, row.anchor, row.num_env_runners)
        spread, fails = 25 * (1.1 + holdup.luck("spread", *arm)), holdup.luck("fails", *arm) > 0.4
        if fails and (chance := holdup.luck("fails", row.seed, *arm)) > 0.5:
            return None if chance > 0.75 else math.nan
        return 455 + 40 * holdup.luck("mean", *arm) + spread * holdup.luck(row.seed, *arm)

    return outcome


def test_the_recorded_study_leads_to_its_certificate_also_by_code_that_shares_nothing_with_the_product():
    recorded = Path(analysis.__file__).parent / "example_study"
    verify(recorded)
    assert differing(recorded) == {}


@pytest.mark.parametrize("number", range(8))
def test_so_it_does_whatever_the_runs_come_to(tmp_path, spec, number):
    certified(tmp_path / "demo", spec, any_outcome(number))
    assert differing(tmp_path / "demo") == {}


def test_an_arm_has_the_figures_that_a_hand_computes(certificate):
    figures, naive = certificate["arms"]["winner@6"], certificate["arms"]["naive_growth@6"]
    assert figures["seeds"] == list(range(7201, 7209))
    assert certificate["arms"]["winner_rllib@6"]["seeds"] == list(range(7201, 7206))
    assert (figures["solve_rate"]["value"], figures["solve_rate"]["low"]) == (1.0, pytest.approx(0.025 ** (1 / 8)))
    assert (figures["resolution_env_steps"], naive["solved"]) == (400, 0)
    assert figures["timing"] == {"emulated": 8}


def when(name, scale, value, *, odd=False):
    """Return the planted truth, but for the runs of an arm: all, or those on odd seeds."""

    def outcome(row):
        other = (row.anchor, row.num_env_runners) == (name, scale) and (not odd or row.seed % 2)
        return value if other else holdup.outcome(row)

    return outcome


OWN = "under RLlib's own engine"
WITHOUT = {**holdup.HOLDUP, "confirm": {"num_seeds": 8, "num_seeds_rllib": 0}}
ANSWERS = [
    # what runs come to; changes of the space; the certificate's sentence; how the answer begins; what its facts hold
    (when("best_small_batch_grown", 6, 481.0), {}, f"holds up with 6 runners {OWN}, and under batched+fused", "Yes: ",
     "Searching with 6 runners did not pay: the best of 2 runners, batch grown does as well"),
    (when("winner_rllib", 6, 300.0, odd=True), {},
     f"does not hold up with 6 runners {OWN}; holds up under batched+fused",
     "No: with 6 of RLlib's own runners the chosen setting does not hold up", f"2 of 5 test runs were solved {OWN}"),
    (when("winner", 3, 300.0, odd=True), {},
     f"holds up with 6 runners {OWN}; does not hold up under batched+fused (with 3 runners)",
     "Yes: with 6 of RLlib's own runners", ""),
    (holdup.outcome, {"holdup": WITHOUT}, "holds up under batched+fused; not tried under RLlib's own engine",
     "Yes: with 6 runners (engine batched+fused)", ""),
]  # fmt: skip


@pytest.mark.parametrize(("outcome", "changes", "sentence", "begins", "fact"), ANSWERS)
def test_the_verdict_about_rllibs_own_engine_comes_first_and_a_disagreement_is_said(
    tmp_path, outcome, changes, sentence, begins, fact
):
    made = certified(tmp_path / "demo", holdup.holdup_spec(**changes), outcome)
    said = analysis.open(tmp_path / "demo").answer()
    assert made["sentence"] == sentence and said.sentence.startswith(begins)
    assert any(fact in each for each in said.facts)
    assert any("num_seeds_rllib" in each.text for each in said.unknown) is (made["rllib"] is None)


def test_nothing_private_is_in_it_and_the_page_says_the_verdict(study, tmp_path):
    text, shown = (study.path / "certificate.json").read_text(), (study.path / "certificate.md").read_text()
    assert "/home/" not in text + shown
    assert str(study.path) not in text + shown
    assert "abcdef0123456789" in text
    assert shown.startswith("# demo: holds up with 6 runners under RLlib's own engine, and under batched+fused\n")
    changed = holdup.holdup_spec(environment__kwargs={"render_mode": None, "levels": ["/home/somebody/a.json"]})
    cut = certified(tmp_path / "demo", changed)["environment"]["kwargs"]
    assert cut == {"render_mode": None, "levels": ["…/a.json"]}


def test_every_changed_figure_is_named_with_both_values(touched):
    verify(touched.path)
    verify(touched.certificate)
    content = json.loads(touched.certificate.read_text())
    score, rule = content["arms"]["winner@6"]["score"], content["winner"]["rule"]
    check = content["verdict"]["checks"]["solved@6"]
    expected = [
        f"arms.winner@6.score.value: written 0.99, recomputed {score['value']}",
        f"winner.rule.lr: written 0.1, recomputed {rule['lr']}",
        "verdict.checks.solved@6.passed: written false, recomputed true",
        "arms.extra@6.score: written 1, recomputed nothing",
        f"optimism.optimism: written nothing, recomputed {content['optimism'].pop('optimism')}",
    ]
    score["value"], rule["lr"], check["passed"], content["arms"]["extra@6"] = 0.99, 0.1, False, {"score": 1}
    touched.certificate.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=f"{len(expected)} differences") as raised:
        verify(touched.path)
    assert sorted(line.strip() for line in str(raised.value).splitlines()[1:-1]) == sorted(expected)


def test_what_is_no_certificate_or_page_of_it_is_said(touched, tmp_path):
    file, shown = touched.certificate, touched.certificate_page
    shown.write_text(shown.read_text().replace("holds up", "holds up splendidly", 1))
    with pytest.raises(RecordError, match=r"certificate\.md: must be the page of these figures"):
        verify(touched.path)
    wrong = {"{": "must be a certificate, got JSONDecodeError", '{"format": 9}': "format 6, got 9", "[]": "got 'list'"}
    for text, words in wrong.items():
        file.write_text(text)
        with pytest.raises(RecordError, match=words):
            verify(file)
    file.unlink()
    with pytest.raises(RecordError, match="must be a certificate, got FileNotFoundError"):
        verify(touched.path)
    for name in ("nowhere", "certificate.json", "nowhere/certificate.json"):
        with pytest.raises(RecordError, match="must be the folder of a study, got none"):
            verify(tmp_path / "empty" / name)


@pytest.mark.parametrize("changed", [("study.json",), ("space.yaml",), ("study.json", "records.jsonl")])
def test_a_rule_that_was_changed_after_the_first_record_is_seen(touched, changed):
    """With the digest of study.json computed again, as somebody who wants the rule would do."""
    identity = touched.identity()
    other = replace(identity, spec=dict(identity.spec, holdup={**identity.spec["holdup"], "tolerance": 0.2}))
    other = replace(other, digest=other.parse().digest())
    new = {
        "study.json": msgspec.json.encode(other).decode(),
        "space.yaml": holdup.written_space(other.spec),
        "records.jsonl": touched.records.read_text().replace(identity.digest, other.digest),
    }
    for name in changed:
        (touched.path / name).write_text(new[name])
    for check in (verify, lambda path: write_certificate(StudyFolder(path))):
        with pytest.raises(RecordError, match="must be the space of the first record") as raised:
            check(touched.path)
        assert raised.value.where.endswith("space.yaml" if "records.jsonl" in changed else changed[0])


def of(records, kind, **wanted):
    """Return the first record of a kind with the wanted values."""
    every = (record for record in records if isinstance(record, kind))
    return next(each for each in every if all(getattr(each, name) == value for name, value in wanted.items()))


def other_score(records):
    end = of(records, TrialEnded, trial=of(records, TrialStarted, stage="confirm").trial)
    return [replace(each, summary=each.summary | {"score": 0.5}) if each is end else each for each in records]


def other_choice(records):
    decision = of(records, StageDecided, phase="search")
    swapped = replace(decision, kept=decision.kept[::-1])
    return [swapped if each is decision else each for each in records]


def one_run_less(records):
    gone = of(records, TrialStarted, anchor="naive_growth", seed=7202).trial
    return [each for each in records if getattr(each, "trial", None) != gone]


@pytest.mark.parametrize(
    ("bend", "named"),
    [
        (other_score, r"line \d+: trial \d+\.score: written 0\.5, recomputed 0\.9"),
        (other_choice, r"line \d+: decision 0 \(search\)\.kept\.0: written "),
        (one_run_less, r"line \d+: decision \d \(confirm\): decision \d: all trials must have ended"),
    ],
)
def test_a_decision_that_does_not_follow_from_the_records_is_named_by_its_place(touched, records, bend, named):
    holdup.write_records(touched, bend(records))
    with pytest.raises(RecordError, match=named) as raised:
        verify(touched.path)
    assert raised.value.where == str(touched.records)


def test_a_study_that_is_not_confirmed_is_told_how_to_go_on(tmp_path, spec):
    folder = holdup.write_study(tmp_path / "demo", spec, holdup.study_records(spec, until="confirm"))
    with pytest.raises(RecordError, match=r"at the stage confirm \(\d+ of \d+ trials\)") as raised:
        make_certificate(folder)
    assert "--name demo" in raised.value.fix
    assert raised.value.fix.endswith("--resume`.")
    with pytest.raises(RecordError, match="needs a hold-up study"):
        make_certificate(holdup.write_study(tmp_path / "plain", plain_spec(), []))
