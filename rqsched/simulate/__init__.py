"""Simulation: a span of schedules on a virtual clock, and the load of the minutes ahead."""
