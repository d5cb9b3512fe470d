"""Where a study stands while it runs, or after. Reads files only; imports no engine."""

from analysis.status.reader import Best, RunningTrial, Status, StatusReader, TimeLeft, read_status

__all__ = ["Best", "RunningTrial", "Status", "StatusReader", "TimeLeft", "read_status"]
