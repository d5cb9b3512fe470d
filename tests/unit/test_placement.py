"""Where processes are, who else is there, and trials that run alone: records, labels and admission without Ray."""

import itertools

import pytest

from study.machine.load import NodeLoad
from study.records.derived import table_row
from study.records.ledger import ledger_of
from study.records.records import RecordLog
from tests.driven import Session
from tests.reported import built, iteration, report
from tests.spaces import cluster, spec

CLUSTER = cluster(n0=4, n1=4)


def place(process, number, host, *runners):
    return {
        "process": process,
        "number": number,
        "runners": list(runners),
        "node": f"10.0.0.{host}",
        "host": host,
        "num_cpus": 1,
    }


def node_load(host, foreign, *, stolen=0.0):
    return NodeLoad(host=host, num_cores=4, seconds=10.0, foreign_cores=foreign, stolen_cores=stolen, largest="make")


def begin(session, runners):
    """Start trials until one of so many runners comes, whose processes are all on n0."""
    while (started := session.conductor.next_trial()).setting["num_env_runners"] != runners:
        session.conductor.end(started.trial, "failed", "not this one")
    return come_up(session, started)


def come_up(session, started):
    count = int(started.setting["num_env_runners"])
    runners = [place("runner", number, "n0", number) for number in range(1, count + 1)]
    report(session.conductor, started.trial, built(place("main", 0, "n0"), *runners), progress=0.0)
    return started.trial


def train(session, trial):
    for number in (1, 2, 3):
        report(session.conductor, trial, iteration(number), progress=number / 3)


def finish(session, trial, *loads):
    train(session, trial)
    session.evaluate(trial, 250.0)
    session.conductor.finish(trial, None, loads)
    return session.conductor.ledger.rows[trial]


def test_a_foreign_load_taints_a_row_and_is_on_record(tmp_path):
    session = Session(tmp_path, cluster=CLUSTER)
    row = finish(session, begin(session, 2), node_load("n0", 1.3, stolen=0.01), node_load("n1", 0.05))
    # Three of four cores are the trial's: one is free for others.
    reason = "foreign load on n0: 1.3 of 4 cores busy with other processes (most by make)"
    assert (row.timing, row.timing_reason) == ("tainted", reason)
    assert (row.summary["foreign_cores"], row.summary["stolen_cores"]) == (1.3, 0.01)
    assert table_row(row)["foreign_cores"] == 1.3
    session.log.close()
    again = ledger_of(tmp_path / "records.jsonl").rows[row.trial]
    assert again == row


@pytest.mark.parametrize("loads", [[node_load("n0", 0.9)], []])
def test_a_load_that_finds_room_changes_nothing_and_an_unknown_one_neither(tmp_path, loads):
    session = Session(tmp_path, cluster=CLUSTER)
    row = finish(session, begin(session, 2), *loads)
    assert (row.timing, row.timing_reason) == ("measured", "3 CPUs reserved of 8 cores")
    assert row.summary["foreign_cores"] == (0.9 if loads else None)


def test_what_another_trial_holds_is_not_free_for_others(tmp_path, monkeypatch):
    clock = itertools.count(1000.0, 10.0)
    monkeypatch.setattr(RecordLog, "now", lambda log: next(clock))
    session = Session(tmp_path, spec(execution="real", parameters__num_env_runners=1), cluster=CLUSTER)
    first, second = (come_up(session, session.conductor.next_trial()) for _ in range(2))
    row = finish(session, first, node_load("n0", 0.9))
    assert row.timing == "tainted"  # two CPUs each: nothing is free on a host of four
    # The second one was alone while it was timed.
    assert finish(session, second, node_load("n0", 0.9)).timing == "measured"


# --- trials that run alone -------------------------------------------------------------------------------------------


def together(path, space):
    """Run a study; return the sets of scales that ran side by side, in their order."""
    session = Session(path, space, cluster=CLUSTER)
    seen = []
    while not session.conductor.exhausted:
        started = []
        while (one := session.conductor.next_trial()) is not None:
            started.append(one)
        seen.append(sorted(int(each.setting["num_env_runners"]) for each in started))
        for each in started:
            session.finish(each.trial)
    assert session.conductor.close().reason == "complete"
    session.log.close()
    return seen


def test_trials_share_a_cluster(tmp_path):
    assert max(map(len, together(tmp_path / "shared", spec(execution="real")))) > 1
