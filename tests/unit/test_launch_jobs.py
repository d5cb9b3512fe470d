"""The script of a batch job, and what the scheduler's own variables say; no scheduler is needed."""

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.errors import LaunchError, SpaceError
from study.launch.allocation import Host, hosts_of_lines
from study.launch.batch import Request, clock, script
from study.launch.job import JOB_FILE, LaunchJob
from study.launch.manifest import WrittenFiles
from study.launch.oar import Oar
from study.launch.pbs import Pbs
from study.launch.ports import HIGHEST, LOWEST, take_block
from study.launch.scheduler import adapter
from study.launch.slurm import Slurm, expand_counts
from study.launch.ssh import parse_hosts
from study.options import seconds

JOB = LaunchJob(
    scheduler="slurm", study="/w/studies/s", run=("run", "--space", "s.yaml"), workdir="/w", python="/v/bin/python"
)
FOLDER = Path("/w/studies/s.launch")
REQUEST = Request(name="s", nodes=2, cpus_per_node=4, walltime_s=7200)


def directives(text, mark):
    return [line.removeprefix(mark) for line in text.splitlines() if line.startswith(mark)]


def as_scheduler(name):
    return JOB.model_copy(update={"scheduler": name})


def test_a_slurm_script_asks_for_nodes_a_warning_and_another_life():
    lines = directives(script(JOB, REQUEST, FOLDER), "#SBATCH ")
    assert {"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--time=2:00:00", "--requeue"} <= set(lines)
    assert "--signal=B:USR1@120" in lines  # B: to the script alone; the steps would die of it
    assert "--open-mode=append" in lines  # a requeued job would empty its log
    assert "--output=/w/studies/s.launch/job-%j.log" in lines


def test_an_oar_script_asks_for_hosts_a_warning_and_another_life():
    request = Request(name="s", nodes=2, cpus_per_node=4, walltime_s=90, besteffort=True)
    lines = directives(script(as_scheduler("oar"), request, FOLDER), "#OAR ")
    assert {"-l /host=2/core=4,walltime=0:01:30", "-t idempotent", "-t besteffort", "--checkpoint 120"} <= set(lines)


def test_a_pbs_script_asks_for_a_line_of_the_node_file_for_each_cpu():
    lines = directives(script(as_scheduler("pbs"), REQUEST, FOLDER), "#PBS ")
    assert {"-l select=2:ncpus=4:mpiprocs=4", "-l place=scatter", "-l walltime=2:00:00"} <= set(lines)


def test_a_folder_with_a_blank_stays_one_word():
    lines = directives(script(JOB, REQUEST, Path("/w/my studies")), "#SBATCH ")
    assert "--output='/w/my studies/job-'%j.log" in lines


def test_without_another_life_nobody_asks_for_one():
    once = JOB.model_copy(update={"resubmit": False})
    assert "--no-requeue" in directives(script(once, REQUEST, FOLDER), "#SBATCH ")
    once = once.model_copy(update={"scheduler": "oar"})
    assert "-t idempotent" not in directives(script(once, REQUEST, FOLDER), "#OAR ")
    once = once.model_copy(update={"scheduler": "pbs"})
    assert {"-r n"} == {line for line in directives(script(once, REQUEST, FOLDER), "#PBS ") if line.startswith("-r")}


@pytest.mark.parametrize(("name", "mark"), [("slurm", "#SBATCH "), ("oar", "#OAR "), ("pbs", "#PBS ")])
def test_the_options_of_the_person_come_last(name, mark):
    assert directives(script(as_scheduler(name), with_options("-r", "n", "-k", "n"), FOLDER), mark)[-2:] == [
        "-r n",
        "-k n",
    ]


def test_whole_nodes_are_asked_for_where_no_cpus_are_given():
    request = Request(name="s", nodes=2, cpus_per_node=None, walltime_s=7200)
    assert "--exclusive" in directives(script(JOB, request, FOLDER), "#SBATCH ")
    assert "-l /host=2,walltime=2:00:00" in directives(script(as_scheduler("oar"), request, FOLDER), "#OAR ")


def test_options_of_the_scheduler_become_directives_one_each():
    words = ("--account=rl lab", "-p", "cpu")
    lines = directives(
        script(JOB, Request(name="s", nodes=1, cpus_per_node=1, walltime_s=60, passed_on=words), FOLDER), "#SBATCH "
    )
    assert lines[-2:] == ["'--account=rl lab'", "-p cpu"]  # the last one wins


def test_resources_of_the_person_replace_ours_in_oar():
    # Two -l are alternatives for OAR, which takes the one that starts first.
    request = Request(
        name="s", nodes=1, cpus_per_node=1, walltime_s=60, passed_on=("-l", "/switch=1/host=2,walltime=1")
    )
    lines = directives(script(as_scheduler("oar"), request, FOLDER), "#OAR ")
    assert [line for line in lines if line.startswith("-l")] == ["-l /switch=1/host=2,walltime=1"]


def with_options(*words):
    return Request(name="s", nodes=1, cpus_per_node=1, walltime_s=60, passed_on=words)


OAR_WORDS = ("-p", "cluster='gros' and wattmeter='YES'", "-l", "{cluster='x'}/host=2,walltime=1", "--project=rl")


def test_oar_unquotes_nothing_so_nothing_is_quoted():
    lines = directives(script(as_scheduler("oar"), with_options(*OAR_WORDS), FOLDER), "#OAR ")
    assert lines[-3:] == [
        "-p cluster='gros' and wattmeter='YES'",
        "-l {cluster='x'}/host=2,walltime=1",
        "--project rl",
    ]


SCAN = """
use OAR::Sub;
my $found = OAR::Sub::scan_script($ARGV[0], "");
print join("\n", $found->{property}, $found->{resources}[0], $found->{project}, $found->{stdout}, $found->{name});
"""


@pytest.mark.skipif(
    shutil.which("perl") is None or subprocess.run(["perl", "-MOAR::Sub", "-e1"], capture_output=True).returncode != 0,
    reason="needs OAR's Perl module",
)
def test_oar_itself_reads_what_was_given(tmp_path):
    (tmp_path / "oardodo").write_text('#!/bin/sh\nexec "$@"\n')  # OAR's change of user
    (tmp_path / "oardodo").chmod(0o755)
    file = tmp_path / "job.sh"
    file.write_text(script(as_scheduler("oar"), with_options(*OAR_WORDS), tmp_path))
    done = subprocess.run(
        ["perl", "-e", SCAN, file],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OARDO_USER": "me"},
        capture_output=True,
        text=True,
    )
    read = [OAR_WORDS[1], OAR_WORDS[3], "rl", f"{tmp_path}/job-%jobid%.log", "s"]
    assert (done.stdout.splitlines(), done.stderr) == (read, "")


@pytest.mark.parametrize("folder", ["/w/my studies", "/w/it's", "/w/a;b"])
def test_a_folder_that_oar_would_not_find_is_refused(folder):
    with pytest.raises(LaunchError, match="--out: OAR takes a folder without blanks"):
        script(as_scheduler("oar"), REQUEST, Path(folder))


@pytest.mark.parametrize(
    ("workdir", "activate"), [("/no/such/folder", ""), ("/", "false"), ("/", "ls /no/such/folder >/dev/null 2>&1")]
)
def test_a_job_ends_where_its_environment_is_not_there(workdir, activate, tmp_path):
    job = JOB.model_copy(update={"workdir": workdir, "activate": activate, "python": "/bin/echo"})
    (tmp_path / "job.sh").write_text(script(job, REQUEST, tmp_path))
    done = subprocess.run(["bash", tmp_path / "job.sh"], capture_output=True, text=True)
    assert (done.stdout, done.returncode > 0) == ("", True)


@pytest.mark.parametrize("words", [("cpu",), ("--x\nrm -rf /",)])
def test_a_word_that_is_no_option_is_refused(words):
    with pytest.raises(LaunchError, match="options of the scheduler"):
        script(JOB, Request(name="s", nodes=1, cpus_per_node=1, walltime_s=60, passed_on=words), FOLDER)


@pytest.mark.parametrize("name", ["slurm", "oar", "pbs"])
def test_scripts_are_shell_and_end_in_the_supervisor(name, tmp_path):
    hostile = as_scheduler(name).model_copy(update={"workdir": str(tmp_path / "a 'b' $(touch no)"), "activate": "true"})
    file, folder = tmp_path / "job.sh", tmp_path / ("folder" if name == "oar" else "the folder")
    file.write_text(script(hostile, REQUEST, folder))
    assert subprocess.run(["bash", "-n", file]).returncode == 0
    last = file.read_text().rstrip().splitlines()[-1]
    assert last == f"exec /v/bin/python -u -m study.launch.supervisor {shlex.quote(f'{folder}/launch.json')}"
    done = subprocess.run(
        ["bash", "-c", 'set -e; cd() { printf %s "$1"; exit; }; . ' + str(file)], capture_output=True, text=True
    )
    assert done.stdout == hostile.workdir


@given(st.integers(0, 10**6))
def test_clock_is_read_back(duration):
    hours, minutes, rest = map(int, clock(duration).split(":"))
    assert hours * 3600 + minutes * 60 + rest == duration
    if duration:
        assert seconds(clock(duration), "--walltime") == duration


@pytest.mark.parametrize(("text", "counts"), [("4", [4]), ("36(x2),18", [36, 36, 18]), ("2,3(x2)", [2, 3, 3])])
def test_slurm_counts_of_cpus(text, counts):
    assert expand_counts(text) == counts


def test_slurm_counts_that_are_none():
    with pytest.raises(LaunchError, match=r"SLURM_JOB_CPUS_PER_NODE: must read like 36\(x2\),18, got 'many'"):
        expand_counts("many")


@given(st.lists(st.integers(1, 200), min_size=1, max_size=30))
def test_counts_are_expanded_as_slurm_shortens_them(counts):
    runs = re.sub(r"$", "", ",".join(f"{count}(x1)" for count in counts))
    assert expand_counts(runs) == counts


def test_a_node_file_has_a_line_for_each_core():
    hosts = hosts_of_lines(["n2\n", "n2\n", "\n", "n1\n", "n2\n"])
    assert hosts == (Host(name="n2", num_cpus=3), Host(name="n1", num_cpus=1))  # the script runs on the first


def test_oar_reads_its_allocation(tmp_path):
    (tmp_path / "nodes").write_text("gros-1\ngros-1\ngros-2\n")
    variables = {"OAR_NODEFILE": str(tmp_path / "nodes"), "OAR_JOB_ID": "17", "OAR_JOB_WALLTIME_SECONDS": "3600"}
    allocation = Oar(as_scheduler("oar"), str(tmp_path), variables).allocation()
    assert [(host.name, host.num_cpus) for host in allocation.hosts] == [("gros-1", 2), ("gros-2", 1)]
    assert allocation.job == "17"
    assert allocation.ends_at == pytest.approx(time.time() + 3600, abs=5)


def test_pbs_reads_its_allocation(tmp_path):
    (tmp_path / "nodes").write_text("a\nb\nb\n")
    variables = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "17.server"}
    job = as_scheduler("pbs").model_copy(update={"walltime_s": 600})
    allocation = Pbs(job, str(tmp_path), variables).allocation()
    assert [(host.name, host.num_cpus) for host in allocation.hosts] == [("a", 1), ("b", 2)]
    assert allocation.job == "17"
    assert allocation.ends_at == pytest.approx(time.time() + 600, abs=5)


SSH = """#!/bin/bash
echo "$*" > "${0%/*}/asked"
exec bash -c "${@: -1}"
"""
ATTACH = """#!/bin/bash
echo "$*" > "${0%/*}/attached"
echo attached
"""


@pytest.mark.parametrize("has_attach", [True, False])
def test_an_agent_on_pbs_is_spoken_to_and_belongs_to_the_job(has_attach, tmp_path, monkeypatch):
    for name, text in (("ssh", SSH), *([("pbs_attach", ATTACH)] if has_attach else [])):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job = as_scheduler("pbs").model_copy(update={"ssh_options": ("-p2222",)})
    command = Pbs(job, str(tmp_path), {"PBS_JOBID": "17.server"}).command(
        Host(name="not-here", num_cpus=1), "cd / && echo $$; exec cat"
    )
    done = subprocess.run(command, input="a task\n", capture_output=True, text=True)
    pid, said = done.stdout.splitlines()
    assert said == "a task"  # and what pbs_attach prints is not taken for an answer
    assert "BatchMode=yes" in (tmp_path / "asked").read_text()
    assert "-p2222 not-here" in (tmp_path / "asked").read_text()
    if has_attach:
        assert (tmp_path / "attached").read_text() == f"-j 17.server -p {pid}\n"


@pytest.mark.parametrize("scheduler", [Oar, Pbs])
def test_the_head_needs_no_remote_shell(scheduler):
    host = Host(name=f"{socket.gethostname().partition('.')[0]}.site.example", num_cpus=1)
    assert scheduler(JOB, "/w", {"PBS_JOBID": "17"}).command(host, "true") == ["bash", "-c", "true"]


@pytest.mark.parametrize(
    ("name", "variable"), [("slurm", "SLURM_JOB_ID"), ("oar", "OAR_NODEFILE"), ("pbs", "PBS_NODEFILE")]
)
def test_outside_of_a_job_the_missing_variable_is_named(name, variable, tmp_path):
    scheduler = adapter(as_scheduler(name), str(tmp_path), {"SLURM_JOB_CPUS_PER_NODE": "1"})
    with pytest.raises(LaunchError, match=variable):
        scheduler._id if isinstance(scheduler, Slurm) else scheduler.allocation()


def test_hosts_of_ssh():
    assert parse_hosts(("lab-1:16", "me@lab-2.site")) == (
        Host(name="lab-1", num_cpus=16),
        Host(name="me@lab-2.site", num_cpus=None),
    )


@pytest.mark.parametrize("hosts", [(), ("-oProxyCommand=touch no",), ("a b",), ("a:0",), ("a", "a:3"), ("a;b",)])
def test_hosts_that_are_none(hosts):
    with pytest.raises(LaunchError, match="--hosts"):
        parse_hosts(hosts)


@pytest.mark.parametrize("text", ["", "soon", "2:00", "0s", "-1h", "1:75:00"])
def test_durations_that_are_none(text):
    with pytest.raises(SpaceError, match="--walltime"):
        seconds(text, "--walltime")


def test_a_launch_is_read_as_it_was_written(tmp_path):
    WrittenFiles(tmp_path / "s.launch", JOB.files())
    file = tmp_path / "s.launch" / JOB_FILE
    assert LaunchJob.read(file) == JOB
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"scheduler": "slurm"}', "\x00\x00"])
def test_a_launch_that_is_damaged_is_refused(tmp_path, content):
    (tmp_path / "launch.json").write_text(content)
    (tmp_path / "launch.json").chmod(0o600)
    with pytest.raises(LaunchError, match=r"launch\.json: must be a launch of this version"):
        LaunchJob.read(tmp_path / "launch.json")


def test_a_launch_that_others_could_have_written_is_refused(tmp_path):
    WrittenFiles(tmp_path, JOB.files())
    file = tmp_path / JOB_FILE
    file.chmod(0o666)
    with pytest.raises(LaunchError, match="must belong to you"):
        LaunchJob.read(file)


def test_blocks_of_ports_never_overlap_and_are_given_back():
    first = take_block("17", num_cpus=4)
    second = take_block("17", num_cpus=4)  # the same job, twice on one host
    try:
        assert LOWEST <= first.base < HIGHEST
        ports = [
            {block.base, *(block[name] for name in ("gcs", "dashboard")), *block.workers} for block in (first, second)
        ]
        assert not ports[0] & ports[1]
        assert abs(first.base - second.base) > first.workers[1] - first.base
    finally:
        base = first.base
        first.release()
        second.release()
    third = take_block("17", num_cpus=4)
    third.release()
    assert third.base == base


def test_blocks_of_different_sizes_never_overlap():
    """Nodes of one job on one host may differ in their CPUs, and so may jobs that begin at different ports."""
    wanted = [("a", 16, 24_000), ("b", 0, 24_000), ("c", 64, 24_050), ("a", 16, None), ("a", 1, None), ("a", 48, None)]
    with contextlib.ExitStack() as stack:
        blocks = []
        for job, num_cpus, base in wanted:
            blocks.append(take_block(job, num_cpus=num_cpus, port_base=base))
            stack.callback(blocks[-1].release)
        assert all(block.base >= (base or LOWEST) for block, (_, _, base) in zip(blocks, wanted, strict=True))
        ports = [port for block in blocks for port in range(block.base, block.workers[1] + 1)]
        assert len(set(ports)) == len(ports)
        assert max(ports) < 32_768, "below the ephemeral ones"


def test_where_no_port_is_left_it_is_said():
    with pytest.raises(LaunchError, match="--port-base"):
        take_block("17", num_cpus=4, port_base=65_500)
