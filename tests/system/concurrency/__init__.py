"""Processes that act on the same schedules at the same moment, over real servers."""
