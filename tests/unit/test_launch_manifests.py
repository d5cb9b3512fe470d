"""What `launch` writes for `ray up`, KubeRay and containers, and the line of the tunnel."""

import importlib.metadata
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from study.errors import LaunchError, StudyError
from study.launch import containers, kuberay, ray_up, tunnels
from study.launch.allocation import Host
from study.launch.containers import Recipe
from study.launch.kuberay import KubeRay, Pod
from study.launch.manifest import fill, quoted
from study.launch.ray_up import RayUp

ROOT = Path(__file__).resolve().parents[2]

CLUSTER = RayUp(
    name="lab",
    study="scaling",
    space_file="/home/me/scaling.yaml",
    token_file="/home/me/job/ray.token",
    head=Host(name="lab-1", num_cpus=8),
    head_ip="10.0.0.1",
    workers=(Host(name="lab-2", num_cpus=16), Host(name="lab-3", num_cpus=24)),
    ssh_user="me",
)
JOB = KubeRay(
    name="scaling",
    study="scaling",
    space_text="environment: {id: CartPole-v1}\n",
    image="registry.example/study:1",
    num_workers=3,
    worker=Pod(num_cpus=16, memory_gb=64, shm_gb=8),
)

HOSTILE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
"""Quotes, colons, newlines, emoji, templates, what YAML folds."""


def load(text):
    return YAML(typ="safe", pure=True).load(text)


def documents(text):
    return list(YAML(typ="safe", pure=True).load_all(text))


def shell(line, **environment):
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], **environment},
    )


# --- quoting ----------------------------------------------------------------------------------------------------------


@given(HOSTILE)
def test_yaml_reads_a_quoted_text_as_it_was(text):
    line = quoted(text)
    assert line.isascii()
    assert load(line) == text
    import yaml  # what `ray` and `kubectl` of today read it with knows YAML 1.1

    assert yaml.safe_load(line) == text


def test_a_missing_value_is_an_error():
    with pytest.raises(Exception, match="undefined"):
        fill("cluster.yaml.j2")


# --- ray up -----------------------------------------------------------------------------------------------------------


def ray_schema():
    place = importlib.util.find_spec("ray")
    return json.loads((Path(place.submodule_search_locations[0]) / "autoscaler" / "ray-schema.json").read_text())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ssh_key": "/home/me/.ssh/lab", "ssh_proxy": "ssh -W %h:%p me@front"},
        {"workers": ()},
        {"interface": "ib0", "dashboard": True, "use_head": True, "activate": "module load python"},
    ],
)
def test_a_cluster_file_follows_rays_schema(changes):
    content = load(ray_up.render(replace(CLUSTER, **changes)))
    jsonschema.validate(content, ray_schema())
    assert content["provider"]["type"] == "local"
    assert content["auth"].get("ssh_private_key", "") == changes.get("ssh_key", "")


def test_a_cluster_file_names_its_hosts_and_copies_token_and_space():
    content = load(ray_up.render(CLUSTER))
    assert content["provider"]["head_ip"] == "lab-1"
    assert content["provider"]["worker_ips"] == ["lab-2", "lab-3"]
    assert content["file_mounts"] == {
        "~/study-lab/ray.token": "/home/me/job/ray.token",
        "~/study-lab/scaling.yaml": "/home/me/scaling.yaml",
    }


def options(line):
    return dict(word.removeprefix("--").partition("=")[::2] for word in shlex.split(line) if word.startswith("--"))


@pytest.fixture
def fake_ray(tmp_path):
    """A `ray` that tells how it was called: what a shell makes of the command is what counts."""
    program = tmp_path / "bin" / "ray"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$RAY_AUTH_MODE" "$RAY_AUTH_TOKEN_PATH" "[${OMP_NUM_THREADS-}]" "$@"\n'
    )
    program.chmod(0o755)
    name = f"t{os.getpid()}"
    yield replace(CLUSTER, name=name, python=f"{program.parent}/python3")
    shutil.rmtree(f"/tmp/ru-{name}", ignore_errors=True)


def start(cluster, role, **environment):
    content = load(ray_up.render(cluster))
    return shell(content[f"{role}_start_ray_commands"][1], HOME="/home/me", OMP_NUM_THREADS="1", **environment)


def test_the_head_starts_with_a_token_ports_and_no_cpus(fake_ray):
    done = start(fake_ray, "head")
    assert done.returncode == 0, done.stderr
    mode, token, threads, *words = done.stdout.splitlines()
    assert (mode, token) == ("token", f"/home/me/study-{fake_ray.name}/ray.token")
    assert threads == "[]", "learners of several CPUs would have one thread"
    given = options(" ".join(words))
    assert words[:2] == ["start", "--head"]
    assert given["node-ip-address"] == "10.0.0.1"
    assert given["port"] == "20000"
    assert given["num-cpus"] == "0"
    assert given["include-dashboard"] == "false"
    assert given["dashboard-host"] == "127.0.0.1"
    assert given["autoscaling-config"] == "~/ray_bootstrap_config.yaml"
    ports = [int(value) for name, value in given.items() if name.endswith("port")]
    assert len(set(ports)) == len(ports) == 10
    assert max(set(ports) - {int(given["max-worker-port"])}) == int(given["min-worker-port"])
    folder = Path(given["temp-dir"]).parent
    assert folder.stat().st_mode & 0o077 == 0
    assert len(given["temp-dir"]) <= 40


def test_the_head_works_only_when_asked(fake_ray):
    done = start(replace(fake_ray, use_head=True), "head")
    assert options(done.stdout)["num-cpus"] == "8"
    done = start(replace(fake_ray, workers=()), "head")
    assert options(done.stdout)["num-cpus"] == "8"


CONNECTION = "10.0.0.1 50000 10.0.0.7 22"


@pytest.mark.parametrize(("name", "cpus"), [("10.0.0.7", "16"), ("lab-3", "24")])
def test_a_worker_starts_with_its_own_cpus_at_the_address_that_the_head_used(fake_ray, name, cpus):
    program = Path(fake_ray.python).with_name("hostname")
    program.write_text("#!/bin/sh\necho lab-3\n" if name == "lab-3" else "#!/bin/sh\necho something-else\n")
    program.chmod(0o755)
    workers = (Host(name="10.0.0.7", num_cpus=16), Host(name="lab-3", num_cpus=24))
    address = "10.0.0.7" if name == "10.0.0.7" else "10.0.0.8"
    done = start(replace(fake_ray, workers=workers), "worker", SSH_CONNECTION=f"10.0.0.1 50000 {address} 22")
    assert done.returncode == 0, done.stderr
    given = options(done.stdout)
    assert given["address"] == "10.0.0.1:20000"
    assert given["num-cpus"] == cpus
    assert given["node-ip-address"] == address
    assert "port" not in given


def test_equal_workers_need_no_name(fake_ray):
    equal = replace(fake_ray, workers=(Host(name="alias-1", num_cpus=4), Host(name="alias-2", num_cpus=4)))
    assert options(start(equal, "worker", SSH_CONNECTION=CONNECTION).stdout)["num-cpus"] == "4"


def test_a_worker_takes_the_address_of_the_interface(fake_ray):
    equal = replace(fake_ray, interface="lo", workers=(Host(name="lab-2", num_cpus=4),))
    done = start(equal, "worker", SSH_CONNECTION=CONNECTION)
    assert options(done.stdout)["node-ip-address"] == "127.0.0.1", done.stderr


def test_a_worker_that_is_not_listed_does_not_start(fake_ray):
    done = start(fake_ray, "worker", SSH_CONNECTION=CONNECTION)
    assert done.returncode == 1
    assert "10.0.0.7: not among the hosts" in done.stderr
    assert done.stdout == ""


def test_a_host_whose_cpus_nobody_says_counts_its_own_cores(fake_ray):
    from study.hosts.machine import machine

    program = Path(fake_ray.python)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    own = replace(fake_ray, workers=(Host(name="lab-2", num_cpus=None),))
    done = start(own, "worker", SSH_CONNECTION=CONNECTION, PYTHONPATH=str(ROOT))
    assert options(done.stdout)["num-cpus"] == str(machine().num_cores), done.stderr


def test_no_secret_is_in_a_cluster_file_or_a_command(tmp_path):
    token = tmp_path / "ray.token"
    token.write_text("s3cret")
    cluster = replace(CLUSTER, token_file=str(token))
    text = ray_up.render(cluster) + "".join(map(str, ray_up.commands(cluster, "cluster.yaml")))
    assert "s3cret" not in text
    assert "RAY_AUTH_TOKEN=" not in text


def process(name, mark):
    """Start a process that has the mark on its command line, as Ray's have."""
    return subprocess.Popen(["bash", "-c", f"exec -a '/ray/{name} --dir={mark}/session_1/logs' sleep 60"])


def test_stopping_ends_this_clusters_processes_and_no_others():
    cluster = replace(CLUSTER, name=f"s{os.getpid()}")
    mine = [process(name, f"{cluster.temp_dir}/r") for name in ("raylet/raylet", "gcs_server", "monitor.py")]
    others = [process("raylet/raylet", "/tmp/ray"), process("raylet/raylet", f"{cluster.temp_dir}-2/r")]
    try:
        time.sleep(0.3)  # until bash has become the process
        done = subprocess.Popen(["bash", "-c", ray_up.stop_command(cluster)])
        ended = [each.wait(timeout=20) for each in mine]
        assert ended == [-15] * 3
        assert done.wait(timeout=20) == 0, "it found itself"
        assert [each.poll() for each in others] == [None, None]
    finally:
        for each in (*mine, *others):
            each.kill()
            each.wait()


def test_the_commands_come_in_an_order_that_works():
    steps = ray_up.commands(CLUSTER, "/tmp/my job/cluster.yaml")
    words = [shlex.split(step.command) for step in steps]
    assert [each[:2] for each in words[1:]] == [
        ["ray", "up"],
        ["ray", "exec"],
        ["ray", "rsync-down"],
        ["ray", "exec"],
        ["ray", "down"],
    ]
    assert all("/tmp/my job/cluster.yaml" in each for each in words[1:])
    study = words[2][-1]
    assert study.index("await_nodes 10.0.0.1:20000 3 300") < study.index("study run --space scaling.yaml")
    assert study.endswith("--address 10.0.0.1:20000 --resume-or-start")
    assert "ray stop" not in "".join(step.command for step in steps)
    assert "ray stop" in steps[-1].why
    stop = words[4][-1]
    assert stop.index("monitor.py") < stop.index("$host") < stop.rindex("/raylet"), "workers before the head"


@given(HOSTILE)
def test_arguments_of_the_study_arrive_as_they_were_given(text):
    cluster = replace(CLUSTER, arguments=("--set", text.replace("\0", "")), activate="")
    (line,) = (step.command for step in ray_up.commands(cluster, "c.yaml") if " study run " in step.command)
    assert shlex.split(shlex.split(line)[-1])[-1] == text.replace("\0", "")


@settings(max_examples=25, deadline=None)
@given(HOSTILE, HOSTILE)
def test_a_cluster_file_survives_any_path(key, activate):
    content = load(ray_up.render(replace(CLUSTER, ssh_key=key, activate=activate, token_file=key)))
    jsonschema.validate(content, ray_schema())
    assert content["auth"]["ssh_private_key"] == key
    assert content["file_mounts"]["~/study-lab/ray.token"] == key
    assert activate in content["head_start_ray_commands"][1]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "x" * 25},
        {"name": "a b"},
        {"study": "../up"},
        {"head_ip": "lab-1"},
        {"head_ip": "127.0.1.1"},
        {"ssh_user": "-oProxyCommand=id"},
        {"interface": "eth0;id"},
        {"python": "apptainer exec study.sif python"},
        {"workers": (Host(name="me@lab-2", num_cpus=1),)},
        {"workers": (Host(name="$(id)", num_cpus=1),)},
        {"workers": (Host(name="lab-1", num_cpus=1),)},
    ],
)
def test_names_that_a_host_would_read_as_something_else_are_refused(changes):
    with pytest.raises(LaunchError, match=r"(?s)must .*, got .*Fix: "):
        replace(CLUSTER, **changes)


# --- KubeRay ----------------------------------------------------------------------------------------------------------


def pods(job):
    spec = documents(kuberay.render(job))[2]["spec"]["rayClusterSpec"]
    groups = [spec["headGroupSpec"], *spec.get("workerGroupSpecs", [])]
    return groups, [group["template"]["spec"] for group in groups]


def test_a_manifest_is_a_claim_a_space_and_a_job():
    claim, space, job = documents(kuberay.render(JOB))
    assert [each["kind"] for each in (claim, space, job)] == ["PersistentVolumeClaim", "ConfigMap", "RayJob"]
    assert job["apiVersion"] == "ray.io/v1"
    assert space["data"] == {"scaling.yaml": JOB.space_text}
    spec = job["spec"]
    assert spec["submissionMode"] == "K8sJobMode"
    assert spec["backoffLimit"] == 3
    assert spec["shutdownAfterJobFinishes"] is True
    assert "activeDeadlineSeconds" not in spec
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    limited = documents(kuberay.render(replace(JOB, deadline_s=3600, namespace="lab", storage_class="fast")))
    assert limited[2]["spec"]["activeDeadlineSeconds"] == 3600
    assert limited[0]["spec"]["storageClassName"] == "fast"
    assert {each["metadata"]["namespace"] for each in limited} == {"lab"}


def test_ray_hands_out_what_the_pods_own():
    (head, workers), (head_pod, worker_pod) = pods(JOB)
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert workers["rayStartParams"]["num-cpus"] == "16"
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 3
    for pod, cpus, memory, shm in ((head_pod, "2", "8Gi", "1Gi"), (worker_pod, "16", "64Gi", "8Gi")):
        (container,) = pod["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"] == {"cpu": cpus, "memory": memory}
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}} in pod["volumes"]
        environment = {each["name"]: each["value"] for each in container["env"]}
        assert environment["RAY_worker_niceness"] == "0"
        assert "RAY_AUTH_MODE" not in environment, "the operator sets it, with the token"


def test_the_head_pod_works_only_when_asked():
    head = Pod(num_cpus=8, memory_gb=16)
    assert pods(replace(JOB, head=head, use_head=True))[0][0]["rayStartParams"]["num-cpus"] == "8"
    (alone,), _ = pods(replace(JOB, head=head, num_workers=0))
    assert alone["rayStartParams"]["num-cpus"] == "8"


def test_every_volume_that_is_mounted_exists():
    for pod in pods(JOB)[1]:
        mounted = {each["name"] for container in pod["containers"] for each in container["volumeMounts"]}
        assert mounted == {each["name"] for each in pod["volumes"]}
    claim, space, _ = documents(kuberay.render(JOB))
    volumes = {each["name"]: each for each in pods(JOB)[1][0]["volumes"]}
    assert volumes["study"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert volumes["space"]["configMap"]["name"] == space["metadata"]["name"]


def test_the_entrypoint_goes_on_with_the_study_on_the_claim():
    line = kuberay.entrypoint(JOB)
    assert line.startswith("python run_study.py --space /etc/study/scaling.yaml --address auto --resume-or-start")
    _, (head_pod, _) = pods(JOB)
    mounts = {each["name"]: each["mountPath"] for each in head_pod["containers"][0]["volumeMounts"]}
    words = shlex.split(line)
    assert words[words.index("--out") + 1].startswith(mounts["study"] + "/")
    assert f"sqlite:///{mounts['study']}/mlflow.db" in words
    assert words[words.index("--space") + 1].startswith(mounts["space"] + "/")
    own = kuberay.entrypoint(replace(JOB, arguments=("--tracking-uri=http://mlflow:5000", "--time-budget", "2h")))
    assert own.endswith("--tracking-uri=http://mlflow:5000 --time-budget 2h")
    assert "sqlite" not in own


def test_the_entrypoint_is_a_command_of_ours():
    from typer.testing import CliRunner

    from study.cli import commands as cli

    help_text = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, ["run", "--help"]).output
    for word in shlex.split(kuberay.entrypoint(JOB)):
        if word.startswith("--"):
            assert word in help_text


def test_the_version_is_that_of_the_installed_ray():
    assert importlib.metadata.version("ray") == kuberay.RAY_VERSION


@settings(max_examples=25, deadline=None)
@given(HOSTILE, HOSTILE)
def test_a_manifest_survives_any_space_and_any_name(text, image):
    job = replace(JOB, space_text=text, image=image, namespace=image, storage_class=image)
    claim, space, ray_job = documents(kuberay.render(job))
    assert space["data"] == {"scaling.yaml": text}
    assert claim["spec"]["storageClassName"] == image
    assert ray_job["metadata"]["namespace"] == image
    assert {pod["containers"][0]["image"] for pod in pods(job)[1]} == {image}


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Scaling"},
        {"name": "s" * 48},
        {"study": "a/b"},
        {"arguments": ("--set", "search.seeds=[1, 2]")},
        {"arguments": ("--name", "$(id)")},
        {"num_workers": -1},
        {"worker": Pod(num_cpus=0, memory_gb=4)},
        {"worker": Pod(num_cpus=1, memory_gb=4, shm_gb=4)},
        {"deadline_s": 0},
        {"max_retries": -1},
    ],
)
def test_what_kubernetes_would_refuse_is_refused_here(changes):
    with pytest.raises(LaunchError, match=r"(?s)kuberay: .*must .*, got .*Fix: "):
        replace(JOB, **changes)


def test_the_reader_pod_mounts_the_claim():
    (line,) = (step.command for step in kuberay.commands(JOB, "job.yaml") if " run " in step.command)
    (overrides,) = (word.partition("=")[2] for word in shlex.split(line) if word.startswith("--overrides="))
    spec = json.loads(overrides)["spec"]
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == JOB.claim
    assert spec["containers"][0]["volumeMounts"] == [{"name": "study", "mountPath": "/study"}]


# --- containers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("render", [containers.render_containerfile, containers.render_apptainer])
def test_a_recipe_installs_the_project_and_the_dashboard(render):
    text = render(Recipe(extras=("envpool",), debian_packages=("libqt5gui5",)))
    assert "python:3.11-slim" in text
    assert "pip install --no-cache-dir -e '.[envpool]' 'ray[default]'" in text
    assert "libqt5gui5 procps rsync wget" in text
    for name in containers.SOURCES:
        assert name in text
        assert (ROOT / name).exists()


def test_the_recipe_runs_as_the_user_of_the_manifest():
    text = containers.render_containerfile()
    (user,) = (line.split()[1] for line in text.splitlines() if line.startswith("USER "))
    assert all(str(pod["securityContext"]["runAsUser"]) == user for pod in pods(JOB)[1])
    assert f"--uid {user}" in text
    assert f"WORKDIR {containers.HOME}" in text


def test_every_file_that_the_build_needs_is_copied():
    named = (ROOT / "pyproject.toml").read_text()
    for needed in ("README.md", "LICENSE"):
        assert needed in named
        assert needed in containers.SOURCES


@pytest.mark.parametrize(
    "bad", [{"python": "3.11\nRUN id"}, {"extras": ("a]' && id",)}, {"debian_packages": ("wget && id",)}]
)
def test_a_recipe_takes_plain_words_only(bad):
    with pytest.raises(StudyError, match=r"(?s)must match .*, got .*Fix: "):
        Recipe(**bad)


def test_build_commands_name_the_files():
    first, push = containers.containerfile_commands("job/Containerfile", "host/study:1")
    assert shlex.split(first.command) == ["podman", "build", "-f", "job/Containerfile", "-t", "host/study:1", "."]
    assert shlex.split(push.command)[-1] == "host/study:1"
    build, try_it = containers.apptainer_commands("my job/study.def", "study.sif")
    assert shlex.split(build.command)[-2:] == ["study.sif", "my job/study.def"]
    assert "study.sif" in shlex.split(try_it.command)


# --- tunnels ----------------------------------------------------------------------------------------------------------


def test_the_tunnel_to_the_dashboard():
    line = tunnels.dashboard_line("n1", 20008, jump="front", user="me")
    assert line == "ssh -N -L 8265:127.0.0.1:20008 -J me@front me@n1  # Ray dashboard: http://127.0.0.1:8265"
    assert " -J other@front you@n1 " in tunnels.dashboard_line("you@n1", 1, jump="other@front", user="me")


@pytest.mark.parametrize("head", ["-oProxyCommand=id", "a b", "a;b", "", "a@b@c", "n1\n"])
def test_a_tunnel_leads_to_a_name_only(head):
    with pytest.raises(LaunchError, match=r"(?s)must be \[user@\]name, got .*Fix: "):
        tunnels.dashboard_line(head, 20008)
