"""Is the protocol worth its cost? Rival ways of choosing, replayed on a complete table at equal CPU-seconds."""

from study.designs.holdup.replay.report import ReplayResult, to_markdown
from study.designs.holdup.replay.run import replay, replay_table

__all__ = ["ReplayResult", "replay", "replay_table", "to_markdown"]
