"""Limits: how many runs of a group, over all its schedules, run at once or start in a window."""
