"""A setting for use elsewhere: a plain RLlib script, or a space file of this project. Reads records; no engine.

What only this project does is refused by name and never left out without a word.
"""

import pprint
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from study.engine import OWN
from study.errors import AnalysisError, wrong_option
from study.records.folder import StudyFolder
from study.records.ledger import TrialRow, ledger_of
from study.space.parameters import SCALE, Value, set_all
from study.space.parsing import written
from study.space.sections import LEARNERS
from study.space.settings import fitted, spec_of
from study.space.spec import StudySpec
from study.text import count, spans

WIDTH = 110
"""Columns of what is written."""
_OF_A_STUDY = {"kind", "execution", "holdup", "throughput", "script"}
"""What a space says that belongs to no single setting."""
_ENVIRONMENT = ("id", "kwargs", "floor", "reference", "target", "max_episode_steps", "backend", "step_wait_ms")
"""Keys of `environment` that a plain script can do, or that training does not need."""


# --- any trial of any study ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTrial:
    """A trial that somebody wants elsewhere, of the study `name`."""

    name: str
    spec: StudySpec
    """What it ran under."""
    row: TrialRow
    setting: dict[str, Value]
    """Every parameter with its value, the scale included."""
    header: list[str]
    """What a reader must know of where the numbers come from, line by line."""


def trial_of(study: StudyFolder, trial: int) -> ExportedTrial:
    """Return a trial of a study; a `SpaceError` says that there is none with this number."""
    identity, rows = study.identity(), ledger_of(study.records).rows
    if (row := rows.get(trial)) is None:
        rule = f"must be a trial of {study.path} ({spans(sorted(rows)) or 'none yet'})"
        raise wrong_option("--trial", rule, got=str(trial), fix="Name one.")
    setting, runners = dict(row.setting), count(row.num_env_runners, "environment runner")
    learners = setting.pop(LEARNERS, None)
    header = [f"Trial {row.trial} of the study '{identity.name}' ({identity.study_id}) at {runners}, seed {row.seed}."]
    if row.status != "finished":
        header.append(f"WARNING: this trial is {row.status}{f': {row.reason}' if row.reason else ''}.")
    if row.last_evaluation is not None:
        returns, steps = row.last_evaluation.returns, row.last_evaluation.env_steps
        mean, episodes = sum(returns) / len(returns), count(len(returns), "episode")
        header.append(f"Last evaluation: mean return {mean:.6g} over {episodes}, {steps:,} env steps.")
    spec = spec_of(identity.parse(), row.variant)
    if learners is not None:
        spec = spec.having(resources={LEARNERS: int(learners)})
    return ExportedTrial(name=identity.name, spec=spec, row=row, setting=setting, header=header)


def at_scale(trial: ExportedTrial, scale: int) -> ExportedTrial:
    """Return a trial with its setting for other environment runners: rules, where it has some, give the numbers."""
    rule = trial.row.rule or {name: value for name, value in trial.setting.items() if name != SCALE}
    runners, header = count(scale, "environment runner"), list(trial.header)
    if scale != trial.row.num_env_runners:
        header.append(f"WARNING: these are its numbers for {runners}, with which the trial did not run.")
    return replace(trial, setting=fitted(trial.spec, rule, scale), header=header)


def trial_as_script(trial: ExportedTrial) -> str:
    """Return a script that trains the trial's setting with RLlib alone.

    Of a study of a person's own script, the calls that give its configuration what the trial had and the script has
    not.

    Raises:
        AnalysisError: The training needs more than Gymnasium and RLlib.
    """
    spec, row, header = trial.spec, trial.row, list(trial.header)
    if spec.script is None:
        if row.engine not in (None, OWN):
            header.append(f"The study trained with {row.engine}; RLlib's own runner and learner differ in detail.")
        return plain_script(spec, trial.setting, header=header, seed=row.seed, iterations=row.iterations)
    own = {name: value for name, value in spec.script.defaults.items() if name not in spec.script.searched}
    learners, steps = spec.script.num_learners, spec.budget.env_steps
    given = values_set(trial.setting, learners=learners, env_steps=steps, own=own, has_kl_term=own.get("kl_coeff") != 0)
    texts = {method: ", ".join(f"{name}={value!r}" for name, value in each.items()) for method, each in given.items()}
    calls = [f"config.{method}({text})" for method, text in texts.items() if text]
    if extensions := extensions_of(given["learners"]):
        calls = [extensions, "", *calls, "install(config)"]
    where = f"Add to {spec.script.source.file} where its configuration is complete:"
    return "\n".join([comment([*header, where if calls else "The script has all values of the trial."]), *calls, ""])


def trial_as_space(trial: ExportedTrial, seeds: Sequence[int] = ()) -> str:
    """Return a space file that trains the trial's setting on its seed, or on these.

    Raises:
        AnalysisError: The trial is one of a throughput study, which has neither evaluations nor a budget to learn.
    """
    spec, row = trial.spec, trial.row
    if not spec.learns:
        rule, got = "a space of one trial must learn", "a throughput study"
        raise AnalysisError(where="--format yaml", rule=rule, got=got, fix="Use `export --format python`.")
    said = spec.having(budget={"iterations": row.iterations}).differing()
    if spec.script is not None:  # the script has it
        del said["environment"]["id"]
        said.pop("algorithm", None)
    content = {name: value for name, value in said.items() if name not in _OF_A_STUDY}
    content |= {"description": f"Trial {row.trial} of the study {trial.name}", "parameters": dict(trial.setting)}
    content["search"] = {"sampler": "grid", "seeds": list(seeds or [row.seed])}
    return written(content, header=comment(trial.header))


# --- a setting -------------------------------------------------------------------------------------------------------


def comment(lines: Iterable[str]) -> str:
    """Return the lines as comments; what is too long goes on in the next line, indented."""
    wrapped = (textwrap.wrap(line, WIDTH, subsequent_indent="  ", drop_whitespace=False) for line in lines)
    return "\n".join(f"# {part.rstrip()}" for parts in wrapped for part in parts)


def plain_script(
    spec: StudySpec, setting: Mapping[str, Value], *, header: Iterable[str], seed: int = 1, iterations: int | None
) -> str:
    """Return a script that trains a setting with RLlib alone, from the template beside this file.

    `setting` has every parameter, the scale included. The script begins with `header`, takes `seed` where it is given
    none, and ends after `iterations`, or where that is None as the budget says.

    Raises:
        AnalysisError: The training needs more than Gymnasium and RLlib.
    """
    _check_rllib_can(spec)
    environment = Environment(
        loader=PackageLoader("study.exporting", "templates"),
        undefined=StrictUndefined,
        autoescape=False,  # Python, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "literal": lambda value: pprint.pformat(value, width=WIDTH - 20, sort_dicts=False).replace("\n", "\n        "),
        "limit": lambda value: 'float("inf")' if value is None else repr(value),
    }
    module, colon, name = spec.environment.id.partition(":")
    calls = _calls(spec, setting)
    script = environment.get_template("script.py.j2").render(
        spec=spec,
        seed=seed,
        judged=("stochastic" if spec.evaluation.stochastic else "greedy") if spec.learns else "",
        # `module:name` is a class of the person's own, or an id that the module registers.
        module=module if colon else "",
        name=name if colon else spec.environment.id,
        calls=calls,
        extensions=extensions_of(dict(calls)["learners"]),
        iterations=iterations,
    )
    return f"{comment(header)}\n\n{script}"


def _check_rllib_can(spec: StudySpec) -> None:
    """Refuse a script that would leave out what only this project does."""
    asked = spec.differing()
    lacking = [name for name in asked["environment"] if name not in _ENVIRONMENT]
    lacking += [name for name in ("conv_net",) if name in asked.get("model", {})]
    lacking += ["the update of A2C"] if spec.algorithm == "A2C" else []
    lacking += [f"the backend {spec.environment.backend}"] if spec.environment.backend != "gymnasium" else []
    if lacking:
        rule = f"a script of RLlib alone must do what was trained, and RLlib lacks {', '.join(lacking)}"
        raise AnalysisError(where="export", rule=rule, fix="Use `export --format yaml`, and run it here.")


class _Calls:
    """Takes the place of RLlib's configuration, and notes what is set: `made` is method -> arguments."""

    def __init__(self, *, num_learners: int, lr: Value | None) -> None:
        self.num_learners, self.lr = num_learners, lr
        self.made: dict[str, dict[str, Any]] = {"env_runners": {}, "training": {}, "learners": {}}

    @property
    def learner_config_dict(self) -> dict[str, Any]:
        """What a learner is told beside RLlib's own options, as far as it is set."""
        told: dict[str, Any] = self.made["learners"].get("learner_config_dict", {})
        return told

    def __getattr__(self, method: str) -> Callable[..., None]:
        return lambda **arguments: self.made[method].update(arguments)


def values_set(
    setting: Mapping[str, Value],
    *,
    learners: int,
    env_steps: int | None,
    own: Mapping[str, Value] = MappingProxyType({}),
    has_kl_term: bool,
) -> dict[str, dict[str, Any]]:
    """Return method of RLlib's configuration -> arguments that give it the values of a setting, but for its `own`.

    RLlib divides a batch among its learners, and a learning rate falls over the budget of `env_steps`; `has_kl_term`:
    whether the loss has the term of `kl_coeff` by itself.
    """
    calls = _Calls(num_learners=learners, lr=setting.get("lr"))
    changed = {name: value for name, value in setting.items() if name not in own or own[name] != value}
    set_all(calls, changed, env_steps=env_steps)
    if "kl_coeff" in changed and not has_kl_term:
        calls.training(use_kl_loss=changed["kl_coeff"] > 0)
    return calls.made


def extensions_of(learners: Mapping[str, Any]) -> str:
    """Return the text that a script needs for what RLlib has no option for: that with which a study trains."""
    if not learners.get("learner_config_dict"):
        return ""
    text = (files("study.trial.engine") / "extensions.py").read_text(encoding="utf-8")
    return text.partition('"""\n\n')[2].rstrip()


def _calls(spec: StudySpec, setting: Mapping[str, Value]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what is called on RLlib's configuration: methods with their arguments; a reader reserves CPUs."""
    resources, traits, model = spec.resources, spec.traits, spec.model
    calls = values_set(
        {name: value for name, value in setting.items() if name in traits.parameters},
        learners=max(resources.num_learners, 1),
        env_steps=spec.budget.env_steps,
        has_kl_term=spec.algorithm != "APPO",
    )
    calls["env_runners"]["sample_timeout_s"] = resources.sample_timeout_s
    calls["training"]["grad_clip_by"] = "global_norm"
    head = "" if model.conv_filters is None else "head_"
    network: dict[str, Any] = {"conv_filters": model.conv_filters} if head else {}
    network |= {f"{head}fcnet_hiddens": list(model.fcnet_hiddens), f"{head}fcnet_activation": model.fcnet_activation}
    network |= {"vf_share_layers": model.vf_share_layers, **({"free_log_std": True} if model.free_log_std else {})}
    learning: dict[str, Any] = {**calls.pop("learners"), "num_learners": resources.num_learners}
    learning |= {"num_gpus_per_learner": resources.num_gpus_per_learner} if resources.num_gpus_per_learner else {}
    return [
        ("environment", {"env": "study_env"}),
        *calls.items(),
        ("rl_module", network),
        ("learners", learning),
        # RLlib's asynchronous algorithms would make iterations of ten seconds.
        *([("reporting", {"min_time_s_per_iteration": None})] if traits.asynchronous else []),
        ("debugging", {}),
    ]
