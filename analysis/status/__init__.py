"""Where a study stands while it runs, or after. Reads files only; imports no engine."""

from analysis.status.reader import StatusReader, read_status
from analysis.status.values import Best, RunningTrial, Status, TimeLeft

__all__ = ["Best", "RunningTrial", "Status", "StatusReader", "TimeLeft", "read_status"]
