"""What `launch ray-up` and `launch kuberay` write, read by the schemas, shells and YAML readers that will read it."""

import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from typer.testing import CliRunner

from study.cli import commands as cli
from study.errors import ClusterError, SpaceError
from study.launch import manifests
from study.launch.job import Job
from study.launch.manifests import plain_name, quoted
from study.machine.host import num_cores
from study.options import load as load_options

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
"""Quotes, colons, newlines, emoji, templates, what YAML folds."""
PRINTABLE = HOSTILE.filter(str.isprintable)
ODD = """a b: 'c' "d" {{ e }} # %s \\ ä😀"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text):
    return YAML(typ="safe", pure=True).load(text)


def shell(*words, **environment):
    environment = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)


@given(HOSTILE)
def test_yaml_reads_a_quoted_text_as_it_was(text):
    line = quoted(text)
    assert line.isascii()
    assert load(line) == text
    assert yaml.safe_load(line) == text  # which `ray` and `kubectl` use, and knows YAML 1.1


def test_two_people_and_two_studies_get_two_names():
    long = "2026_A.very-long-name-of-a-study"
    names = [plain_name(name, of="me") for name in ("lab", long, f"{long}-2")] + [plain_name("lab", of="they")]
    assert len(set(names)) == 4
    assert all(len(name) <= manifests.LONGEST_NAME and name[0].isalpha() for name in names)
    assert plain_name("scaling") == "scaling"


QUICKSTART = load_options("quickstart.yaml", None, None)


def made(write, **changes):
    """Return the files of a launch by their names, and the commands to type."""
    space = ROOT / "search_spaces" / "quickstart.yaml"
    text = space.read_text(encoding="utf-8")
    job = {"launcher": "x", "name": "lab", "out": "studies", "space": str(space), "space_text": text}
    folder = Path.cwd() / "studies" / "lab.launch"
    set_ = changes.pop("set_", None)
    spec = QUICKSTART if set_ is None else load_options(str(space), set_, None)
    files, commands = write(Job(**{**job, **changes}), folder, spec)
    return SimpleNamespace(files=files, commands=commands)


def ray_up(hosts="me@10.0.0.1:8,lab-2:16,lab-3:24", **changes):
    return made(manifests.ray_up, hosts=hosts, **{"python": "python3", **changes})


def cluster(**changes):
    return load(ray_up(**changes).files["cluster.yaml"])


def commands(made):
    """Return the words of every command that is to be typed."""
    return [shlex.split(line) for line in re.findall(r"^# .*\n(.*)$", made.commands, flags=re.MULTILINE)]


@pytest.mark.parametrize("changes", [{}, {"hosts": "127.0.0.1"}, {"use_head": True, "activate": "module load python"}])
def test_a_cluster_file_follows_rays_schema(changes):
    place = importlib.util.find_spec("ray").submodule_search_locations[0]
    schema = json.loads((Path(place) / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(cluster(**changes), schema)


def test_a_cluster_file_and_its_commands_name_hosts_token_script_and_space(place):
    content, folder = cluster(), place / "studies" / "lab.launch"
    assert content["provider"] == {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["lab-2", "lab-3"]}
    assert content["auth"]["ssh_user"] == "me"
    there = {path.rpartition("/")[2]: path for path in content["file_mounts"]}
    mounts = {name: content["file_mounts"][path] for name, path in there.items()}
    assert {mounts["ray.token"], mounts["node.sh"]} == {f"{folder}/ray.token", f"{folder}/node.sh"}
    assert Path(mounts["lab.yaml"]).name == "quickstart.yaml"
    words = commands(ray_up())
    actions = [["ray", "up"], ["ray", "exec"], ["ray", "rsync-down"], ["ray", "exec"], ["ray", "down"]]
    assert [each[:2] for each in words[1:]] == actions
    assert all(str(folder / "cluster.yaml") in each for each in words[1:])
    assert [words[2][-1], words[4][-1]] == [f". {there['node.sh']} run", f". {there['node.sh']} stop-all"]


@pytest.fixture
def host(place):
    """A function that runs `node.sh` with a `ray` and a `python3` that only print how they were called."""
    program = place / "bin" / "ray"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$RAY_AUTH_MODE" "$RAY_AUTH_TOKEN_PATH" "[${OMP_NUM_THREADS-}]" "$@"\n'
    )
    program.chmod(0o755)
    home = place / "home"
    made = []

    def run(action, *, address="", hostname=None, **changes):
        text = ray_up(**{"python": f"{program.parent}/python3", "name": f"t{os.getpid()}", **changes}).files["node.sh"]
        made.append(next(line for line in text.splitlines() if line.startswith("temp=")).partition("=")[2])
        (place / "node.sh").write_text(text)
        if hostname:
            (program.parent / "hostname").write_text(f"#!/bin/sh\necho {hostname}\n")
            (program.parent / "hostname").chmod(0o755)
        connection = f"10.0.0.1 50000 {address} 22"
        words = ("bash", "-c", f"(. {place}/node.sh {action})")
        return shell(*words, HOME=str(home), OMP_NUM_THREADS="1", SSH_CONNECTION=connection, PYTHONPATH=str(ROOT))

    run.program = program
    yield run
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


def given_to_ray(done):
    assert done.returncode == 0, done.stderr
    return dict(word.removeprefix("--").partition("=")[::2] for word in done.stdout.split() if word.startswith("--"))


def test_the_head_starts_with_a_token_ports_and_cpus_when_asked_or_alone(host):
    done = host("head")
    given = given_to_ray(done)
    mode, token, threads, *words = done.stdout.splitlines()
    assert (mode, token.endswith("/ray.token"), words[:2]) == ("token", True, ["start", "--head"])
    assert threads == "[]", "learners of several CPUs would have one thread"
    expected = {"node-ip-address": "10.0.0.1", "port": "20000", "num-cpus": "0", "include-dashboard": "false"}
    assert expected.items() <= given.items()
    ports = [int(value) for name, value in given.items() if name.endswith("port")]
    assert len(set(ports)) == len(ports) >= 10  # ray[default] adds one
    assert max(set(ports) - {int(given["max-worker-port"])}) == int(given["min-worker-port"])
    assert Path(given["temp-dir"]).parent.stat().st_mode & 0o077 == 0
    assert len(given["temp-dir"]) <= 40
    for changes in ({"use_head": True}, {"hosts": "10.0.0.1:8"}):
        assert given_to_ray(host("head", **changes))["num-cpus"] == "8"


@pytest.mark.parametrize(
    ("hosts", "address", "hostname", "cpus"),
    [
        ("10.0.0.1:8,10.0.0.7:16,lab-3:24", "10.0.0.7", "else", "16"),
        ("10.0.0.1:8,10.0.0.7:16,lab-3:24", "10.0.0.8", "lab-3", "24"),
        ("10.0.0.1:8,alias-1:4,alias-2:4", "10.0.0.7", None, "4"),  # equal ones need no name
        ("10.0.0.1:8,lab-2", "10.0.0.7", None, str(num_cores())),  # nobody says how many
    ],
)
def test_a_worker_starts_with_its_own_cpus_and_address(host, hosts, address, hostname, cpus):
    host.program.with_name("python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    host.program.with_name("python3").chmod(0o755)
    given = given_to_ray(host("worker", hosts=hosts, address=address, hostname=hostname))
    assert {"address": "10.0.0.1:20000", "num-cpus": cpus, "node-ip-address": address}.items() <= given.items()
    assert "port" not in given


def test_a_host_that_is_not_listed_or_lacks_its_environment_starts_nothing(host):
    done = host("worker", address="10.0.0.9")
    assert (done.returncode, done.stdout) == (1, "")
    assert "10.0.0.9: not among the hosts" in done.stderr
    done = host("head", activate="ls /no/such/folder >/dev/null 2>&1")
    assert (done.returncode, done.stdout) == (1, "")


@settings(max_examples=10)
@given(PRINTABLE)
def test_the_study_gets_its_arguments_as_they_were_given(text):
    uri = f"sqlite:///{text}.db".replace("\0", "")
    script = (
        ray_up(arguments=("--tracking-uri", uri)).files["node.sh"].partition("run_study() {")[2].partition("\n}")[0]
    )
    words = shlex.split(script)
    assert words[words.index("--tracking-uri") + 1] == uri
    assert words[words.index("run") + 1 :][:2] == ["--space", "lab.yaml"]
    assert "--resume-or-start" in words


def process(name, mark):
    """Start a process that has the mark on its command line, as Ray's have."""
    return subprocess.Popen(["bash", "-c", f"exec -a '/ray/{name} --dir={mark}/session_1/logs' sleep 60"])


def test_stopping_ends_this_clusters_processes_and_no_others(place):
    name = f"s{os.getpid()}"
    (place / "node.sh").write_text(ray_up(name=name).files["node.sh"])
    temp = next(
        line.partition("=")[2] for line in (place / "node.sh").read_text().splitlines() if line.startswith("temp=")
    )
    mine = [process(kind, f"{temp}/r") for kind in ("raylet/raylet", "gcs_server", "monitor.py")]
    others = [process("raylet/raylet", "/tmp/ray"), process("raylet/raylet", f"{temp}-2/r")]
    try:
        time.sleep(0.3)  # until bash has become the process
        done = subprocess.Popen(["bash", "-c", f". {place}/node.sh stop"])
        assert [each.wait(timeout=20) for each in mine] == [-15] * 3
        assert done.wait(timeout=20) == 0, "it found itself"
        assert [each.poll() for each in others] == [None, None]
    finally:
        for each in (*mine, *others):
            each.kill()
            each.wait()


@pytest.mark.parametrize("hosts", ["127.0.0.1,lab-2", "me@10.0.0.1,you@lab-2", "no-such-host.invalid"])
def test_hosts_that_others_would_not_reach_are_refused(hosts):
    with pytest.raises(SpaceError) as error:
        ray_up(hosts)
    assert [fault.where for fault in error.value.faults] == ["--hosts"]


def kuberay(**changes):
    return made(manifests.kuberay, **{"image": ODD, "cpus_per_node": 16, "nodes": 3, **changes})


def documents(**changes):
    """Return the claim, the space and the job."""
    return list(YAML(typ="safe", pure=True).load_all(kuberay(**changes).files["rayjob.yaml"]))


def groups(**changes):
    """Return the head's group of pods and that of the workers."""
    spec = documents(**changes)[2]["spec"]["rayClusterSpec"]
    return spec["headGroupSpec"], *spec["workerGroupSpecs"]


def test_a_manifest_is_a_claim_a_space_and_a_job():
    claim, space, job = documents()
    assert [each["kind"] for each in (claim, space, job)] == ["PersistentVolumeClaim", "ConfigMap", "RayJob"]
    assert list(space["data"].values()) == [(ROOT / "search_spaces" / "quickstart.yaml").read_text()]
    assert job["spec"]["backoffLimit"] == 3
    assert job["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == importlib.metadata.version("ray")


def test_a_space_is_sent_as_text_whatever_its_editor_wrote_before_it_and_whatever_the_locale(place):
    plain = (ROOT / "search_spaces" / "quickstart.yaml").read_text(encoding="utf-8").replace("CartPole", "CärtPole", 1)
    (place / "marked.yaml").write_bytes(plain.encode("utf-8-sig"))
    words = ["-m", "study", "launch", "kuberay", "marked.yaml", "--image", "i", "--cpus-per-node", "16"]
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    ascii_locale["PYTHONIOENCODING"] = "utf-8"
    done = shell(sys.executable, *words, **ascii_locale)
    assert done.returncode == 0, done.stderr
    written = (place / "studies" / "marked.launch" / "rayjob.yaml").read_text()
    _, space, _ = YAML(typ="safe", pure=True).load_all(written)
    assert space["data"] == {"marked.yaml": plain}


def test_ray_hands_out_what_the_pods_own_and_every_volume_that_is_mounted_exists():
    head, workers = groups()
    assert groups(use_head=True)[0]["rayStartParams"]["num-cpus"] == "2"
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 3
    for group, for_ray, cpus, memory in ((head, "0", "2", "8Gi"), (workers, "16", "16", "18Gi")):
        assert group["rayStartParams"]["num-cpus"] == for_ray
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == ODD
        assert container["resources"]["requests"] == container["resources"]["limits"] == {"cpu": cpus, "memory": memory}
        environment = {each["name"]: each["value"] for each in container["env"]}
        assert environment["RAY_worker_niceness"] == "0"
        assert "RAY_AUTH_MODE" not in environment, "the operator sets it, with the token"
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert mounts.keys() == {each["name"] for each in pod["volumes"]}
        assert mounts["shm"] == "/dev/shm"
    claim, space, _ = documents()
    volumes = {each["name"]: each for each in head["template"]["spec"]["volumes"]}
    assert volumes["study"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert volumes["space"]["configMap"]["name"] == space["metadata"]["name"]


def test_the_entrypoint_is_a_command_of_ours_that_keeps_all_on_the_claim():
    words = shlex.split(documents()[2]["spec"]["entrypoint"])
    assert words[:2] == ["python", "run_study.py"]
    value = {option: words[words.index(option) + 1] for option in ("--space", "--address", "--out", "--tracking-uri")}
    (container,) = groups()[0]["template"]["spec"]["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert value["--space"] == f"{mounts['space']}/{next(iter(documents()[1]['data']))}"
    assert value["--out"].startswith(f"{mounts['study']}/")
    assert value["--tracking-uri"].startswith(f"sqlite:///{mounts['study']}/")
    help_text = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, ["run", "--help"]).output
    assert all(word in help_text for word in words if word.startswith("--"))
    assert "sqlite" not in documents(arguments=("--tracking-uri", "http://mlflow:5000"))[2]["spec"]["entrypoint"]


@pytest.mark.parametrize("words", [("--set", "search.seeds=[1, 2]"), ("--optuna-storage", "sqlite:///$(id).db")])
def test_an_argument_that_a_shell_would_read_is_refused(words):
    with pytest.raises(SpaceError, match="must have no signs of a shell"):
        kuberay(arguments=words)


def test_pods_into_which_no_trial_fits_are_refused():
    changes = ["execution=real", "resources.memory_per_env_runner_mb=2000"]
    kuberay(nodes=1, set_=changes)
    with pytest.raises(ClusterError):
        kuberay(nodes=1, set_=changes, cpus_per_node=4)


def test_the_recipe_copies_what_the_build_needs_and_the_reader_pod_mounts_the_claim():
    (words,) = (words for words in commands(kuberay()) if words[:3] == ["kubectl", "run", "lab-files"])
    (overrides,) = (word.partition("=")[2] for word in words if word.startswith("--overrides="))
    spec = json.loads(overrides)["spec"]
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == documents()[0]["metadata"]["name"]
    assert spec["containers"][0]["image"] == ODD
    text = kuberay().files["Containerfile"]
    for file in ("pyproject.toml", "README.md", "LICENSE", "run_study.py", "study", "analysis", "search_spaces"):
        assert file in text
        assert (ROOT / file).exists()
