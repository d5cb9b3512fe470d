"""PPO as its published implementations have it, by RLlib's places for extensions: connectors and a learner's subclass.

`install` gives a configuration what its `learner_config_dict` asks for. Imports RLlib and nothing of this project: an
exported script holds this text.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.wrappers.utils import RunningMeanStd, update_mean_var_count_from_moments
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

OF_LEARNER = (
    "clip_end_fraction",
    "normalize_rewards",
    "orthogonal_init",
    "adam_epsilon",
    "vf_lr",
    "minibatch_advantages",
    "vf_clip_range",
)
OF_RUNNERS = ("normalize_observations",)
_EPSILON, _LARGEST = 1e-8, 10.0
"""Of normalised observations and rewards, as Stable-Baselines3's `VecNormalize` has them."""
_FIRST_COUNT = 1e-4
"""What a running mean of 0 and variance of 1 count for at the beginning, there as in Gymnasium."""
_HIDDEN_GAIN, _POLICY_GAIN, _VALUE_GAIN = math.sqrt(2), 0.01, 1.0
"""Of orthogonal weights: Huang et al., "The 37 implementation details of PPO", ICLR blog track 2022, number 2."""
_OF_VALUE = ("vf.", "encoder.critic_")
"""How the names begin of what the value function alone has."""
_OLD_VALUES = "old_values"
_STATE = "extensions"


def told(config: Any) -> dict[str, Any]:
    """Return what a configuration asks for of what is here."""
    given = config.learner_config_dict
    return {name: given[name] for name in (*OF_RUNNERS, *OF_LEARNER) if given.get(name)}


def install(config: Any) -> None:
    """Put in the connectors and the learner that a complete configuration of PPO needs for what it asks for.

    Raises:
        ValueError: The configuration has a learner, connectors or agents that these do not go together with.
    """
    names = told(config)
    if names and config.is_multi_agent:
        raise ValueError(f"{', '.join(names)}: needs an environment of one agent")
    if {*names} & {*OF_LEARNER} and not issubclass(config.learner_class, ExtendedPPOTorchLearner):
        if config.learner_class is not PPOTorchLearner:
            raise ValueError(f"{', '.join(names)}: needs RLlib's own learner of PPO, got {config.learner_class}")
        config.learners(learner_class=ExtendedPPOTorchLearner)
    if "normalize_rewards" in names:
        if config.num_learners > 1:
            raise ValueError("normalize_rewards: needs one learner, which sees all rewards")
        if config._learner_connector is not None:
            raise ValueError("normalize_rewards: the learner has connectors of its own")
        scaled = functools.partial(ScaledRewards, gamma=config.gamma, num_lanes=num_lanes_in_order(config))
        config.learners(learner_connector=scaled)
    if "normalize_observations" in names:
        if config._env_to_module_connector not in (None, normalized_observations):
            raise ValueError("normalize_observations: the runners have connectors of their own")
        config.env_runners(
            env_to_module_connector=normalized_observations,
            merge_env_runner_states="training_only",
            broadcast_env_runner_states=True,
        )


def merged(first: tuple[Any, Any, Any], second: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return count, mean and variance of two sets of rows together; the first count is above 0."""
    (count, *moments), (more, *others) = first, second
    mean, variance, total = update_mean_var_count_from_moments(*moments, count, *others, more)
    return total, mean, variance


def scaled_by(rows: Any, mean: Any, variance: Any) -> Any:
    """Return rows in units of the deviation, clipped, single precision."""
    return np.clip((rows - mean) / np.sqrt(variance + _EPSILON), -_LARGEST, _LARGEST).astype(np.float32)


class NormalizedObservations(ConnectorV2):
    """Normalises observations on their way to the module, and so in the episodes, as `VecNormalize` does.

    RLlib's `MeanStdFilter` adds what a runner has seen before to the merged state once more. The last observation of an
    episode that ends is not counted. It may stand for several runners, each of which has seen its own: all share what
    was merged last (`base`: count, mean, variance), and each normalises by that and by what it has seen since (`added`:
    the same, with an axis of runners before).
    """

    _update_stats = True
    _num_runners = 1
    base: tuple[Any, Any, Any] | None = None

    def begin(self, shape: tuple[int, ...], *, num_runners: int = 1) -> None:
        """Know nothing of observations of a shape, for so many runners."""
        self._num_runners = num_runners
        self.set_state({"base": (_FIRST_COUNT, np.zeros(shape), np.ones(shape))})

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Return the space of what comes out."""
        return Box(-_LARGEST, _LARGEST, input_observation_space.shape, np.float32)

    def __call__(self, *, episodes: Sequence[Any], batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Replace the last observation of each episode."""
        rows = np.stack([np.asarray(episode.get_observations(-1)) for episode in episodes])
        counted = rows[[not episode.is_done for episode in episodes]]
        if self._update_stats and len(counted):
            self.update(counted)
        for episode, row in zip(episodes, scaled_by(rows, *self.moments()), strict=True):
            episode.set_observations(at_indices=-1, new_data=row)
            episode.observation_space = self.observation_space
        return batch

    def update(self, rows: Any, *, lanes: int | None = None) -> None:
        """Learn from observations of the first lanes, shape (rows, *shape), `lanes` of which are of one runner."""
        self._known()
        lanes = lanes or len(rows)
        whole = len(rows) // lanes
        shaped = rows[: whole * lanes].reshape(whole, lanes, *rows.shape[1:])
        for first, part in ((0, shaped), (whole, rows[None, whole * lanes :])):
            if part.size:
                own = slice(first, first + len(part))
                seen = part.shape[1], part.mean(axis=1, dtype=np.float64), part.var(axis=1, dtype=np.float64)
                known = self.added[0][own], self.added[1][own], self.added[2][own]
                for all_runners, new in zip(self.added, merged(known, seen), strict=True):
                    all_runners[own] = new

    def moments(self, *, lanes: int = 1) -> tuple[Any, Any]:
        """Return mean and variance by which each lane's observations are normalised now, shape (lanes, *shape)."""
        _, *moments = merged(self._known(), (self.added[0], self.added[1], self.added[2]))
        mean, variance = (np.repeat(each, lanes, axis=0) for each in moments)
        return mean, variance

    def _known(self) -> tuple[Any, Any, Any]:
        if self.base is None:
            self.begin(self.input_observation_space.shape)
        assert self.base is not None
        return self.base

    def get_state(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Return what is known."""
        base, (count, *moments) = list(self._known()), self.added
        return {"base": base, "added": [count.reshape(-1).copy(), *(each.copy() for each in moments)]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take a state of runners that are as many, or a merged one."""
        count, mean, variance = state["base"]
        self.base = float(count), np.asarray(mean), np.asarray(variance)
        shape = self.base[1].shape
        self.added = [np.zeros((self._num_runners, *each)) for each in ((1,) * len(shape), shape, shape)]
        if "added" in state and len(state["added"][0]) == self._num_runners:
            self.added = [np.array(new).reshape(old.shape) for new, old in zip(state["added"], self.added, strict=True)]

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the state that adds what all runners have seen to the base; their order has no influence."""
        seen = [each for state in states for each in zip(*state["added"], strict=True) if each[0] > 0]
        seen.sort(key=lambda each: (float(each[0]), each[1].tobytes(), each[2].tobytes()))
        total = self._known()
        for each in seen:
            total = merged(total, each)
        return {"base": list(total)}


def normalized_observations(env: Any = None, spaces: Any = None, device: Any = None) -> NormalizedObservations:
    """Return the connector: for `env_to_module_connector`."""
    return NormalizedObservations()


def frozen_statistics(connectors: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return mean and variance of the observations by the state of a pipeline of connectors; None where it has none."""
    state = connectors.get(NormalizedObservations.__name__)
    if state is None:
        return None
    known = NormalizedObservations()
    known.set_state({"base": state["base"]})
    _, mean, variance = known.merge_states([state] if "added" in state else [])["base"]
    return mean, variance


class ScaledRewards(ConnectorV2):
    """Divides rewards by the deviation of the discounted returns so far, as Stable-Baselines3's `VecNormalize` does.

    It belongs to the one learner, which sees all of them: of RLlib's own the `learner_connector`. Where it knows which
    lane each reward is of, every reward is divided by the deviation at its own step, as there; else by that at the end
    of the batch.
    """

    def __init__(self, *spaces: Any, gamma: float, num_lanes: int | None = None, **options: Any) -> None:
        """Begin; `num_lanes`: episodes come lane by lane, of so many lanes with equal shares of a batch."""
        super().__init__(*spaces, **options)
        self._gamma, self._num_lanes = gamma, num_lanes
        self._returns = RunningMeanStd()
        self._discounted: dict[str, float] = {}
        """Of each episode in the last batch: r(t) + gamma r(t-1) + gamma^2 r(t-2) + … up to its last step t."""

    def __call__(self, *, episodes: Sequence[Any], batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Replace the rewards of the episodes, which the pieces behind this one read.

        RLlib has appended a row to each episode before, with reward 0, and a number to its id.
        """
        filled = [episode for episode in episodes if len(episode) > 1]
        buffers = [episode.rewards for episode in filled]
        rewards = [np.asarray(each.data[each.lookback :][:-1], np.float64) for each in buffers]
        names = [episode.id_.rpartition("_")[0] for episode in filled]
        for each, scaled in zip(buffers, self.scaled(names, rewards), strict=True):
            each.data = np.concatenate([each.data[: each.lookback], scaled, [0.0]])
        return batch

    def scaled(self, episode_ids: Sequence[str], rewards: Sequence[Any]) -> list[Any]:
        """Learn from the rewards of a batch, and return them scaled and clipped.

        Args:
            episode_ids: Of each piece of an episode; every episode that goes on has one in each batch.
            rewards: Of each piece, shape (steps,), not empty; the pieces of an episode in time order.
        """
        from scipy.signal import lfilter  # half a second of every process that starts, and few studies need it

        before, returns = self._discounted, []
        now: dict[str, float] = {}
        for name, piece in zip(episode_ids, rewards, strict=True):
            start = self._gamma * now.get(name, before.get(name, 0.0))
            discounted, _ = lfilter([1.0], [1.0, -self._gamma], piece, zi=[start])
            now[name] = float(discounted[-1])
            returns.append(discounted)
        self._discounted = now
        lengths = [len(piece) for piece in rewards]
        steps, values = _steps_of_lanes(lengths, self._num_lanes), np.concatenate(returns)
        deviations = np.empty(max(steps) + 1)
        order = np.argsort(steps, kind="stable")
        for step, rows in enumerate(np.split(order, np.cumsum(np.bincount(steps))[:-1])):
            self._returns.update(values[rows])
            deviations[step] = np.sqrt(self._returns.var + _EPSILON)
        scaled = np.clip(np.concatenate(rewards) / deviations[steps], -_LARGEST, _LARGEST)
        return np.split(scaled, np.cumsum(lengths)[:-1])

    def get_state(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Return what `set_state` takes."""
        moments = [float(self._returns.mean), float(self._returns.var), float(self._returns.count)]
        return {"returns": moments, "discounted": dict(self._discounted)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on as the scale that has this state."""
        mean, variance, self._returns.count = state["returns"]
        self._returns.mean, self._returns.var = np.float64(mean), np.float64(variance)
        self._discounted = dict(state["discounted"])


def _steps_of_lanes(lengths: Sequence[int], num_lanes: int | None) -> Any:
    """Return at which step of its lane each reward is, shape (rewards,); all 0 where pieces do not fill lane by lane.

    The first lanes have a step more than the others where a batch is no multiple of the lanes.
    """
    total = sum(lengths)
    share, extra = divmod(total, num_lanes or 1)
    of_lanes = [share + 1] * extra + [share] * ((num_lanes or 1) - extra)
    if num_lanes is None or not {*np.cumsum(of_lanes)} <= {0, *np.cumsum(lengths)}:
        return np.zeros(total, int)
    return np.concatenate([np.arange(each) for each in of_lanes])


def num_lanes_in_order(config: Any) -> int | None:
    """Return the lanes of a trial whose runners return episodes lane by lane; None where they do not."""
    if not getattr(config.env_runner_cls, "in_lane_order", False):
        return None
    # An emulated trial's configuration has one runner with all lanes.
    of = getattr(config, "lane_layout", None) or config
    return int(max(of.num_env_runners, 1) * of.num_envs_per_env_runner)


class ExtendedPPOTorchLearner(PPOTorchLearner):
    """RLlib's learner of PPO with the extensions; the loss is RLlib's, given other numbers."""

    def build(self) -> None:
        """Build as RLlib does."""
        self.told = told(self.config)
        self.clip_share = 1.0
        """Share of `clip_param` that holds in this iteration."""
        super().build()
        connectors = [] if self._learner_connector is None else self._learner_connector
        self.reward_scale = next((each for each in connectors if isinstance(each, ScaledRewards)), None)
        if self.told.get("vf_clip_range"):
            connectors.append(OldValues())

    def _make_module(self) -> Any:
        """Return the module, with weights as told."""
        module = super()._make_module()
        if self.told.get("orthogonal_init"):
            for each in module.keys():  # noqa: SIM118 (a module of RLlib, no dictionary)
                orthogonal(module[each], seed=self.config.seed)
        return module

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Register an optimizer; RLlib controls its learning rate, of each of its groups in proportion."""
        rate, module = self.told.get("vf_lr"), self.module[module_id]
        parameters, groups = self.get_parameters(module), list[dict[str, Any]]()
        if rate:
            first = config.lr[0][1] if isinstance(config.lr, list) else config.lr
            of_value = [each for name, each in module.named_parameters() if name.startswith(_OF_VALUE)]
            groups = [{"params": of_value, "share": rate / first}]
        own = {id(each) for group in groups for each in group["params"]}
        groups = [{"params": [each for each in parameters if id(each) not in own]}, *groups]
        self.register_optimizer(
            module_id=module_id, optimizer=self._optimizer(groups), params=parameters, lr_or_lr_schedule=config.lr
        )

    def _optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.Adam(groups, eps=self.told.get("adam_epsilon") or 1e-8)

    @staticmethod
    def _set_optimizer_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = float(lr) * group["share"] if "share" in group else lr

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Let learning rate and clip range fall to what they are in the next iteration."""
        super().after_gradient_based_update(timesteps=timesteps)
        if falls := self.told.get("clip_end_fraction"):
            last, steps = falls
            done = min(timesteps.get(NUM_ENV_STEPS_SAMPLED_LIFETIME, 0) / steps, 1.0)
            self.clip_share = 1.0 - (1.0 - last) * done

    def in_use(self, module_id: str) -> dict[str, Any]:
        """Return extension -> what it really is, of those that are not as RLlib has them; without Adam's epsilon."""
        found = {name: value for name, value in self.told.items() if name not in ("adam_epsilon", "vf_lr")}
        groups = [group for _, each in self.get_optimizers_for_module(module_id) for group in each.param_groups]
        if len(groups) == 2:
            found["vf_lr"] = float(groups[1]["lr"])
        if "clip_end_fraction" in found:
            found["clip_end_fraction"] = found["clip_end_fraction"][0]
        return {**found, "normalize_rewards": int(self.reward_scale is not None)}

    def get_state(self, components: Any = None, *, not_components: Any = None, **options: Any) -> dict[str, Any]:
        """Return RLlib's state of a learner, with the clip range and the scale of rewards."""
        state: dict[str, Any] = super().get_state(components, not_components=not_components, **options)
        if self.told and self._check_component(_STATE, components, not_components):
            rewards = None if self.reward_scale is None else self.reward_scale.get_state()
            state[_STATE] = {"clip_share": self.clip_share, "rewards": rewards}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Take a state."""
        super().set_state(state)
        if (own := state.get(_STATE)) is not None:
            self.clip_share = own["clip_share"]
            if self.reward_scale is not None and own["rewards"] is not None:
                self.reward_scale.set_state(own["rewards"])

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: Any, fwd_out: Any) -> Any:
        """Return the loss of a minibatch."""
        mask, reach = batch.get(Columns.LOSS_MASK), self.told.get("vf_clip_range")
        rows = slice(None) if mask is None else mask
        if self.told.get("minibatch_advantages"):
            advantages = batch[Postprocessing.ADVANTAGES]
            own = advantages[rows]
            if len(own) > 1:
                batch = {**batch, Postprocessing.ADVANTAGES: (advantages - own.mean()) / (own.std() + 1e-8)}
        seen = config
        if self.clip_share != 1 or reach:
            # The value loss is added behind RLlib's.
            changes = {"clip_param": config.clip_param * self.clip_share} | ({"vf_loss_coeff": 0.0} if reach else {})
            seen = SimpleNamespace(**{**vars(config), **changes})
        loss = super().compute_loss_for_module(module_id=module_id, config=seen, batch=batch, fwd_out=fwd_out)
        if reach:
            module = self.module[module_id].unwrapped()
            values = module.compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS))[rows]
            targets, old = batch[Postprocessing.VALUE_TARGETS][rows], batch[_OLD_VALUES][rows]
            near = old + torch.clamp(values - old, -reach, reach)
            errors = torch.max((values - targets) ** 2, (near - targets) ** 2)
            value_loss = torch.clamp(errors, 0, config.vf_clip_param).mean()
            loss = loss + config.vf_loss_coeff * value_loss
            self.metrics.log_value((module_id, "vf_loss"), value_loss, window=1)
        return loss


def orthogonal(module: Any, *, seed: int | None) -> None:
    """Give a module of PPO orthogonal weights: gain sqrt(2), 0.01 in the policy's last layer, 1 in the value's."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    gains: dict[int, float] = {}
    for head, gain in ((module.pi, _POLICY_GAIN), (getattr(module, "vf", None), _VALUE_GAIN)):
        layers = [each for each in head.modules() if isinstance(each, torch.nn.Linear)] if head is not None else []
        gains |= {id(each): gain for each in layers[-1:]}
    for layer in module.modules():
        if isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d)):
            torch.nn.init.orthogonal_(layer.weight, gains.get(id(layer), _HIDDEN_GAIN), generator)
            if layer.bias is not None:
                torch.nn.init.zeros_(layer.bias)


class OldValues(ConnectorV2):
    """Adds the values before the update, which RLlib leaves out; goes behind its advantages."""

    @torch.no_grad()
    def __call__(self, *, rl_module: Any, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add a column to each module's batch."""
        for module_id, columns in batch.items():
            columns[_OLD_VALUES] = rl_module[module_id].compute_values(columns)
        return batch
