"""Limits: how many runs of a group may run at once, or start in a window of time. A group may have many schedules."""
