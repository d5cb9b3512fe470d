"""Which lanes a trial has, which process steps them, and how many steps each gives to a train batch. Pure.

A lane is one environment of one runner. What a lane does depends on the trial's seed and the lane alone, so
the processes that step it can be many (a real trial: one per runner) or few (an emulated one).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """How far a process steps its lanes in one round of sampling."""

    num_vector_steps: int
    """Steps of all lanes together; the last one may leave out the rear lanes."""
    num_lanes_in_last_step: int
    """Lanes that take part in the last vector step: the first ones of the process."""

    def env_steps(self, num_lanes: int) -> int:
        """Return the environment steps that `num_lanes` lanes take."""
        return max(self.num_vector_steps - 1, 0) * num_lanes + self.num_lanes_in_last_step


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLayout:
    """The lanes of a trial, numbered runner by runner, and the processes that step them.

    Attributes:
        num_env_runners: Runners of the trial.
        num_envs_per_env_runner: Lanes of each runner.
        num_processes: Processes that step lanes; each has whole runners, neighbours stay together.
    """

    num_env_runners: int
    num_envs_per_env_runner: int
    num_processes: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_processes <= self.num_env_runners:
            raise ValueError(
                f"LaneLayout: 1 <= num_processes <= num_env_runners must hold, got {self.num_processes} processes "
                f"and {self.num_env_runners} runners."
            )

    @property
    def num_lanes(self) -> int:
        """Lanes of the trial."""
        return self.num_env_runners * self.num_envs_per_env_runner

    def runners_of(self, process: int) -> range:
        """Return the runners (from 1, as RLlib counts them) of a process (from 0)."""
        share, extra = divmod(self.num_env_runners, self.num_processes)
        first = process * share + min(process, extra)
        return range(first + 1, first + 1 + share + (process < extra))

    def lanes_of(self, process: int) -> tuple[tuple[int, int], ...]:
        """Return (runner from 1, environment from 0) of every lane of a process (from 0), in lane order."""
        return tuple(
            (runner, env) for runner in self.runners_of(process) for env in range(self.num_envs_per_env_runner)
        )

    def fragment(self, process: int, env_steps: int) -> Fragment:
        """Return the share of a process (from 0) in a train batch of exactly `env_steps` steps.

        Every lane gives `env_steps // num_lanes` steps, and the first `env_steps % num_lanes` lanes of the
        trial one more: the batch is what was asked, in every layout.
        """
        share, extra = divmod(env_steps, self.num_lanes)
        first = (self.runners_of(process).start - 1) * self.num_envs_per_env_runner
        lanes = len(self.runners_of(process)) * self.num_envs_per_env_runner
        longer = min(max(extra - first, 0), lanes)
        if longer:
            return Fragment(num_vector_steps=share + 1, num_lanes_in_last_step=longer)
        return Fragment(num_vector_steps=share, num_lanes_in_last_step=lanes if share else 0)
