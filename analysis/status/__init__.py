"""Where a study stands while it runs, or after. Reads files only; imports no engine."""

from analysis.status.reader import Status, StatusReader, TimeLeft, read_status, time_left

__all__ = ["Status", "StatusReader", "TimeLeft", "read_status", "time_left"]
