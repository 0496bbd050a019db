"""Limits: how many runs of a group, over all its schedules, may run at once or start in a window of time."""
