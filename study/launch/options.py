"""The options of `python -m study launch`, checked and put together. Light to import: `--help` starts nothing."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from study.console import SteadyConsole
from study.designs.holdup.stages import STAGES
from study.launch import option_checks as checks
from study.mirrors.tracking_uri import asked_uri
from study.options import (
    Replicate,
    Set,
    Space,
    SpaceArgument,
    Trials,
    checked_name,
    checked_stage,
    load,
    one_space,
    seconds,
)
from study.space.space_file import find_space

Kind = Literal["slurm", "oar", "pbs", "ssh", "ray-up", "kuberay"]


def launch(
    context: typer.Context,
    kind: Annotated[Kind, typer.Argument(help="What starts the job.")],
    space_argument: SpaceArgument = None,
    space: Space = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes to ask for; 1 by default.")] = None,
    cpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="CPUs of each for Ray; by default whole nodes, or all that ssh finds.")
    ] = None,
    walltime: Annotated[
        str | None, typer.Option(help="Longest duration of one job: 2:00:00, 90m; 1 h by default.")
    ] = None,
    besteffort: Annotated[
        bool, typer.Option("--besteffort", help="OAR: idle resources, killed when somebody wants them.")
    ] = False,
    hosts: Annotated[
        str | None, typer.Option(help="ssh, ray-up: hosts, as [user@]name[:cpus], with commas; the head first.")
    ] = None,
    print_: Annotated[bool, typer.Option("--print", help="Show the job and submit nothing.")] = False,
    name: Annotated[str | None, typer.Option(help="Name of the study; by default that of the space.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that holds the studies, on the nodes.")] = Path("studies"),
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow, as the first node reaches it.")] = None,
    optuna_storage: Annotated[str | None, typer.Option(help="As of `run`.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="As of `run`.")] = False,
    until: Annotated[str | None, typer.Option(help=f"Last stage of a hold-up study: {', '.join(STAGES)}.")] = None,
    replicate: Replicate = None,
    trials: Trials = None,
    set_: Set = None,
    use_head: Annotated[
        bool, typer.Option("--use-head", help="Let trials run on the first node of several too.")
    ] = False,
    min_nodes: Annotated[int | None, typer.Option(min=1, help="Begin with so many nodes; by default with all.")] = None,
    resubmit: Annotated[
        bool, typer.Option("--resubmit/--no-resubmit", help="Queue the job again until the study is complete.")
    ] = True,
    workdir: Annotated[
        Path | None, typer.Option(help="Folder in which all runs, on every node; by default this one.")
    ] = None,
    python: Annotated[str, typer.Option(help="Interpreter on every node; by default this one.")] = shlex.quote(
        sys.executable
    ),
    activate: Annotated[str, typer.Option(help="Shell line before it, e.g. 'module load python'.")] = "",
    stage: Annotated[
        bool, typer.Option("--stage", help="Copy the interpreter's environment to each node's own disk first.")
    ] = False,
    interface: Annotated[str, typer.Option(help="Network interface for Ray, e.g. ib0.")] = "",
    port_base: Annotated[
        int | None, typer.Option(min=1024, max=65000, help="First port that Ray may use, rounded up to hundreds.")
    ] = None,
    temp_root: Annotated[
        str | None, typer.Option(help="Folder on each node's own disk, short; /tmp by default.")
    ] = None,
    wait: Annotated[str, typer.Option(help="How long Ray may take to start on all nodes.")] = "5m",
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Start Ray's dashboard (needs ray[default]).")] = False,
    jump: Annotated[
        str | None, typer.Option(help="Front-end, as [user@]name: for the dashboard's ssh line; ray-up: to the head.")
    ] = None,
    ssh_option: Annotated[list[str] | None, typer.Option(help="ssh, pbs: an option for ssh, e.g. -p2222.")] = None,
    ssh_key: Annotated[Path | None, typer.Option(help="ray-up: private key for the hosts.")] = None,
    head_ip: Annotated[str | None, typer.Option(help="ray-up: address at which the others reach the head.")] = None,
    image: Annotated[str | None, typer.Option(help="kuberay: container image with this project.")] = None,
    memory_gb: Annotated[int | None, typer.Option(min=2, help="kuberay: memory of each node.")] = None,
) -> None:
    """Run a study as a job: start Ray on allocated nodes, resume when requeued, leave nothing behind.

    ray-up and kuberay write what those programs need, and say what to type.
    Options after `--` go to the scheduler: `launch slurm scaling.yaml --nodes 2 -- --account=rl --partition=cpu`.
    """
    from study.launch import command, manifests
    from study.launch.batch import Request
    from study.launch.job import LaunchJob

    given = {
        "--nodes": nodes,
        "--walltime": walltime,
        "--besteffort": besteffort,
        "--hosts": hosts,
        "--ssh-option": ssh_option,
        "--ssh-key": ssh_key,
        "--head-ip": head_ip,
        "--image": image,
        "--memory-gb": memory_gb,
        "--min-nodes": min_nodes,
        "--workdir": workdir,
        "--stage": stage,
        "--temp-root": temp_root,
        "--cpus-per-node": cpus_per_node,
    }
    passed_on = tuple(context.args)
    if space is not None and space_argument is not None and space_argument.startswith("-"):
        passed_on, space_argument = (space_argument, *passed_on), None  # the first option behind `--`
    space = one_space(space_argument, space)
    checks.check_kind(kind, {option: value for option, value in given.items() if value}, passed_on)
    here = Path.cwd() if workdir is None else workdir
    checks.check_text(
        {
            "--name": name,
            "--out": out,
            "--workdir": here,
            "--hosts": hosts,
            "--python": python,
            "--activate": activate,
            "--interface": interface,
            "--temp-root": temp_root,
            "--jump": jump,
            "--ssh-option": ssh_option,
            "--ssh-key": ssh_key,
            "--head-ip": head_ip,
            "--image": image,
            "--tracking-uri": tracking_uri,
            "--optuna-storage": optuna_storage,
            "--set": set_,
            "after --": passed_on,
        }
    )
    spec, file = load(space, set_, replicate, trials), find_space(space)
    name = checked_name(name or file.stem)
    if until is not None:
        checked_stage(until, spec)
    more: list[str] = []
    passed = {
        "--tracking-uri": asked_uri(tracking_uri),
        "--optuna-storage": optuna_storage,
        "--until": until,
        "--replicate": replicate,
        "--trials": trials,
    }
    for option, value in passed.items():
        more += [] if value is None else [option, str(value)]
    more += ["--tensorboard"] if tensorboard else []
    for change in set_ or []:
        more += ["--set", change]
    walltime_s = int(seconds(walltime or "1h", "--walltime"))
    checks.check_walltime(kind, walltime_s)
    console = SteadyConsole(width=None if sys.stdout.isatty() else 140)
    listed = tuple(each.strip() for each in (hosts or "").split(",") if each.strip())
    on_nodes = out if kind == "ssh" else here / out
    folder = (out if kind == "ssh" else on_nodes).resolve() / f"{name}.launch"
    checks.check_text({"space": file, "--out": folder})  # where links lead
    if jump:
        checks.check_jump(jump)
    if temp_root:
        checks.check_temp_root(temp_root)
    if kind == "ray-up" or kind == "kuberay":
        checks.check_no_password(kind, {"--tracking-uri": tracking_uri, "--optuna-storage": optuna_storage})
        manifest = manifests.Manifest(
            name=name,
            folder=folder,
            space=file,
            spec=spec,
            arguments=("--name", name, *more),
            hosts=listed,
            ssh_key=ssh_key,
            head_ip=head_ip,
            jump=jump,
            image=image or "",
            nodes=nodes or 1,
            cpus_per_node=cpus_per_node,
            memory_gb=memory_gb,
            walltime_s=walltime_s if walltime else None,
            python=python,
            activate=activate,
            interface=interface,
            port_base=port_base,
            dashboard=dashboard,
            use_head=use_head,
            wait_s=seconds(wait, "--wait"),
        )
        write = manifests.ray_up_files if kind == "ray-up" else manifests.kuberay_files
        raise typer.Exit(manifests.show_manifest(console, write(manifest), only_print=print_))
    is_ssh = kind == "ssh"
    checks.check_min_nodes(min_nodes, nodes=len(listed) if is_ssh else nodes or 1)
    checks.check_python(kind, python)
    job = LaunchJob(
        scheduler=kind,
        study=str(on_nodes / name),
        run=(
            *("run", "--space", f"{{folder}}/{file.name}" if is_ssh else str(file.resolve())),
            *("--name", name, "--out", str(on_nodes), *more),
        ),
        space_file=file.name if is_ssh else "",
        space_text=file.read_text() if is_ssh else "",
        workdir=str(here),
        python=python,
        activate=activate,
        stage=checks.staged(kind, python) if stage else "",
        hosts=listed,
        ssh_options=tuple(ssh_option or ()),
        cpus_per_node=cpus_per_node,
        use_head=use_head,
        min_nodes=min_nodes,
        interface=interface,
        port_base=port_base,
        temp_root=temp_root or "/tmp",
        wait_s=seconds(wait, "--wait"),
        walltime_s=None if is_ssh else walltime_s,
        resubmit=resubmit and not is_ssh,
        dashboard=dashboard,
        jump=jump or "",
        user="" if is_ssh else checks.login(),
    )
    request = Request(
        name=name,
        nodes=nodes or 1,
        cpus_per_node=cpus_per_node,
        walltime_s=walltime_s,
        besteffort=besteffort,
        passed_on=passed_on,
    )
    asked = command.Launch(job=job, request=None if is_ssh else request, spec=spec, name=name, folder=folder)
    raise typer.Exit(command.launch(console, asked, only_print=print_))
