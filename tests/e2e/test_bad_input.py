"""A person's mistakes: a clear error with the way out, exit code 2, nothing started, nothing lost, no traceback."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from study.cluster.address import resolve_address
from study.errors import ClusterError
from tests.e2e.commands import SPACE, command, environment, run, study


@pytest.fixture
def place(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def refused(done, *words):
    """The command was refused with all these words, and no traceback."""
    assert done.returncode == 2, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert "Fix:" in done.stderr or "Usage:" in done.stderr or "Error" in done.stderr


SPACES = [
    ("missing file", None, ("no such file",)),
    ("yaml", "environment: [", ("must be YAML",)),
    ("duplicate", SPACE + "\nbudget: {env_steps: 1}\n", ("distinct",)),
    ("tag", SPACE + "\nrllib: !!python/object/apply:os.system [ls]\n", ("tags are not allowed",)),
    ("type", SPACE.replace("env_steps: 800", "env_steps: many"), ("budget.env_steps", "many")),
    ("misspelt", SPACE.replace("train_batch_size", "train_batch_siz"), ("Did you mean 'train_batch_size'?",)),
    ("bounds", SPACE.replace("low: 1.0e-4", "low: 1.0"), ("`low < high` must hold",)),
    ("minibatch", SPACE.replace("minibatch_size: 64", "minibatch_size: 640"), ("640 > 400",)),
    ("no runner", SPACE.replace("[1, 2]\n  num_envs", "0\n  num_envs"), ("num_env_runners", "got 0")),
    ("negative", SPACE.replace("[1, 2]\n  num_envs", "[-1]\n  num_envs"), ("num_env_runners", "got -1")),
    ("half", SPACE.replace("[1, 2]\n  num_envs", "2.5\n  num_envs"), ("num_env_runners", "2.5", "whole number")),
    ("no env", SPACE.replace("CartPole-v1", "CartPol-v1"), ("environment.id", "CartPole-v1")),
    ("no module", SPACE.replace("CartPole-v1", "nowhere:Env"), ("environment.id", "nowhere")),
    ("no class", SPACE.replace("CartPole-v1", "tests.environments:Nothing"), ("environment.id", "Nothing")),
    ("bad kwargs", SPACE.replace("CartPole-v1", "CartPole-v1, kwargs: {x: 1}"), ("environment.kwargs",)),
    ("judged elsewhere", SPACE.replace("episodes: 4", "episodes: 4, kwargs: {x: 1}"), ("evaluation.kwargs",)),
    ("multi-agent", SPACE.replace("CartPole-v1", "ray.rllib.env.multi_agent_env:MultiAgentEnv"), ("for one agent",)),
    ("GPUs", SPACE + "\nresources: {num_gpus_per_learner: 99}\n", ("num_gpus_per_learner", "99 of the cluster's")),
]


@pytest.mark.parametrize(("text", "words"), [case[1:] for case in SPACES], ids=[case[0] for case in SPACES])
def test_a_wrong_space_is_refused(tmp_path, text, words):
    if text is not None:
        (tmp_path / "space.yaml").write_text(text)
    refused(run(command("--space", "space.yaml"), tmp_path), *words)
    assert not (tmp_path / "studies").exists()


QT = next(Path("/usr/lib").glob("*/libQt5Gui.so.5"), None)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to hide a library")
@pytest.mark.skipif(QT is None, reason="libqt5gui5 is not installed")
def test_procgen_without_its_library_names_the_package(place):
    pytest.importorskip("envpool")
    folder, over = QT.parent, place / "over"
    over.mkdir()
    hide = (  # a device 0,0 on the upper side of an overlay is a file that is not there
        f"mount -t tmpfs none {over} && mkdir {over}/upper {over}/work && mknod {over}/upper/{QT.name} c 0 0 && "
        f"mount -t overlay -o lowerdir={folder},upperdir={over}/upper,workdir={over}/work overlay {folder}"
    )
    if run(["unshare", "--mount", "sh", "-c", hide], place).returncode:
        pytest.skip("no overlay can be mounted here")
    words = shlex.join(command("--space", "space.yaml", "--set", "environment.id=procgen:coinrun"))
    done = run(["unshare", "--mount", "sh", "-c", f"{hide} && exec {words}"], place)
    refused(done, "needs a library of the system, got: libQt5Gui.so.5: cannot open", "apt install libqt5gui5")
    assert "qtbase5-dev" not in done.stderr
    assert not (place / "studies").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--time-budget", "soon"], ("--time-budget: a duration above zero, got 'soon'.",)),
        (["--time-budget", "5"], ("--time-budget: needs a unit, got '5'. Fix: Write 5s, 5m or 5h.",)),
        (["--set", "lr=0.1"], ("lr: unknown key. Fix: Did you mean 'parameters.lr'?",)),
        (["--set", "budget.env_steps=1M"], ("1 problem", "budget.env_steps: ", "Fix: Write 1000000.")),
        (["--set", "environment.id=ALE/Pong-v5"], ("Fix: Run `pip install 'ale-py'`",)),
        (
            ["--set", "rllib.trainin.lr_=0.1"],
            ("1 problem", "rllib.trainin: must be a method of PPOConfig", "'training'"),
        ),
        (["other.yaml"], ("--space: must be named once, got 'other.yaml' and 'space.yaml'.",)),
        (["--name", "a/b"], ("--name",)),
        (["--set", "budget"], ("--set",)),
        (["--trials", "0"], ("--trials",)),
        (["--resume"], ("there must be a study to resume",)),
        (["--until", "race"], ("--until: only a hold-up study has stages",)),
        (["--tracking-uri", "file:///tmp/x"], ("tracking",)),
        (["--tracking-uri", "http://127.0.0.1:9"], ("http://127.0.0.1:9",)),
        (["--address", "127.0.0.1:9"], ("--address 127.0.0.1:9", "no answer")),
        (["--address", "nonsense"], ("host:port",)),
        (["--set", "resources.memory_main_mb=10000000"], ("MB", "lower resources")),
        (["--bogus"], ("No such option",)),
        ([], None),
    ],
)
def test_a_wrong_option_is_refused(place, options, words):
    if words is None:
        refused(run(command(), place), "--space")
        return
    refused(run(command("--space", "space.yaml", *options), place), *words)
    assert not (place / "studies").exists()


def test_a_misspelt_key_of_rllib_is_found_by_a_dry_run_with_its_line(place):
    text = SPACE + "rllib:\n  training:\n    shufle_batch_per_epoch: false\n"
    (place / "space.yaml").write_text(text)
    done = run(command("space.yaml", "--dry-run"), place)
    line = text.splitlines().index("    shufle_batch_per_epoch: false") + 1
    refused(done, f"rllib.training.shufle_batch_per_epoch (line {line}): ", "Did you mean 'shuffle_batch_per_epoch'?")
    assert done.stderr.startswith("space.yaml: 1 problem")


def test_a_space_is_named_by_its_place_or_by_an_option(place):
    by_option, by_place = (run([*command(*words), "--dry-run"], place) for words in (("--space", "space"), ("space",)))
    assert by_option.returncode == by_place.returncode == 0, by_place.stderr
    assert by_option.stdout == by_place.stdout
    launched = study("launch", "slurm", "--print", "--nodes", "2")
    shown = [
        run([*launched, *words, "--", "--account=rl", "-pcpu"], place) for words in (("--space", "space"), ("space",))
    ]
    assert shown[0].returncode == shown[1].returncode == 0, shown[0].stderr
    assert shown[0].stdout == shown[1].stdout
    assert "#SBATCH --account=rl" in shown[0].stdout
    refused(run(launched, place), "--space: must be given, got none. Fix: Name a file")
    refused(run(study("evaluate"), place), "STUDY: must be given")


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tracking-uri", "mysql://me:s3cr@127.0.0.1/runs"], ("tracking URI mysql://***@127.0.0.1/runs", "MySQLdb")),
        (["--optuna-storage", "postgresql+nobody://127.0.0.1/runs"], ("Optuna storage", "nobody", "[postgresql]")),
        (["--tracking-uri", "postgresql://me:s3cr@127.0.0.1:9/runs"], ("tracking URI", "onnection refused")),
        (["--optuna-storage", "postgresql://me:s3cr@127.0.0.1:9/runs"], ("Optuna storage", "onnection refused")),
        (["--tracking-uri", "postgresql://127.0.0.1:port/runs"], ("the port as a number",)),
    ],
)
def test_a_database_that_cannot_work_is_told_before_ray_starts(place, options, words):
    done = run(command("--space", "space.yaml", *options), place)
    refused(done, *words)
    assert done.stderr.count("Fix:") == 1
    assert "Starting Ray" not in done.stdout + done.stderr
    assert "s3cr" not in done.stdout + done.stderr
    assert not (place / "studies").exists()


def test_an_address_where_something_else_answers(place):
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        refused(run(command("--space", "space.yaml", "--address", f"127.0.0.1:{port}"), place), "not Ray")
        refused(run(command("--space", "space.yaml", "--tracking-uri", f"http://127.0.0.1:{port}"), place), "MLflow")
    finally:
        server.terminate()
        server.wait()


def test_auto_without_a_ray_on_this_machine(place):
    try:
        pytest.skip(f"a Ray runs at {resolve_address('auto')}: the study would join it")
    except ClusterError as error:
        if "no Ray of yours" not in str(error):
            pytest.skip(str(error))
    refused(run(command("--space", "space.yaml", "--address", "auto"), place), "--address auto")


WITHOUT_RAY = [
    ["--help"],
    ["--space", "space.yaml", "--dry-run"],
    ["--space", "space.yaml", "--set", "parameters.lr=0"],
    ["--space", "nowhere.yaml"],
    ["--space", "space.yaml", "--address", "127.0.0.1:9"],
    ["--space", "space.yaml", "--set", "environment.id=CartPol-v1"],
    ["--space", "space.yaml", "--tracking-uri", "http://127.0.0.1:9"],
    ["--space", "space.yaml", "--resume"],
]


@pytest.mark.parametrize("options", WITHOUT_RAY, ids=[" ".join(options) for options in WITHOUT_RAY])
def test_help_plan_and_refusals_do_not_import_ray(place, options):
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('ENGINES', *[m for m in ('ray', 'torch', 'mlflow') if m in sys.modules]))\n"
        f"sys.argv = ['run_study.py', *{options!r}]\n"
        "from study.cli.commands import main_run\nmain_run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=place, env=environment(), capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1] == "ENGINES", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "holdup.rank_seeds={first: 8, count: 4}"], ("share no seed with tune_seeds", "Begin at 9")),
        (["--set", "holdup.target_scale=5"], ("must not lie below every searched scale",)),
        (["--set", "holdup.num_settings=6"], ("the race needs 8 settings", "Raise it to 11")),
        (["--set", "holdup.cpu_hours=0.1"], ("must pay for the smallest search", "Fix: set it to")),
        (["--until", "rce"], ("--until: one of calibrate, search, race", "got 'rce'")),
    ],
)
def test_a_hold_up_study_that_cannot_end_well_is_refused_with_what_would_be_enough(place, options, words):
    refused(run(command("--space", "acrobot_holdup.yaml", "--dry-run", *options), place), *words)


def test_the_plan_says_what_a_trial_needs_and_how_its_times_will_be_labelled(place):
    words = command("--space", "space.yaml", "--dry-run", "--set", "parameters.num_env_runners=[1, 400]")
    words += ["--set", "parameters.train_batch_size=4000", "--set", "budget.env_steps=8000"]
    done = run(words, place)
    assert done.returncode == 0, done.stderr
    assert re.search(r"400 +\d+ +emulated +1 .*emulated", done.stdout)
    done = run([*words, "--set", "execution=real", "--set", "resources.memory_per_env_runner_mb=1"], place)
    assert re.search(r"400 +\d+ +real +401 .*oversubscribed", done.stdout)
    assert not (place / "studies").exists()


def test_the_schema_is_a_json_schema_that_accepts_the_shipped_spaces(place):
    import json

    done = run(study("schema"), place)
    schema = json.loads(done.stdout)
    assert {"environment", "parameters", "budget"} <= set(schema["properties"])
    jsonschema = pytest.importorskip("jsonschema")
    from ruamel.yaml import YAML

    from study.space.space_file import SHIPPED

    for file in [*SHIPPED.glob("*.yaml"), place / "space.yaml"]:
        jsonschema.Draft202012Validator(schema).validate(YAML(typ="safe").load(file.read_text()))
    bad = YAML(typ="safe").load(SPACE.replace("train_batch_size", "train_batch_siz"))
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(bad))


def test_a_study_folder_of_another_user_is_not_resumed(place):
    if os.getuid() != 0:
        pytest.skip("needs root to give a folder away")
    folder = place / "studies" / "space"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text("{}")
    os.chown(folder, 12345, 12345)
    refused(run(command("--space", "space.yaml", "--resume"), place), "must belong to you")


@pytest.mark.parametrize("content", ["", "garbage", "{}", '{"format": 99}'])
def test_a_damaged_identity_is_named(place, content):
    folder = place / "studies" / "space"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(content)
    refused(run(command("--space", "space.yaml", "--resume"), place), "study.json")
    assert (folder / "study.json").read_text() == content


def test_nothing_is_written_where_one_may_not_write(place):
    out = Path("/proc/nowhere")
    refused(run(command("--space", "space.yaml", "--out", out), place), "must be writable")
