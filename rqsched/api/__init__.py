"""The objects that applications hold: the scheduler and the handles of schedules and runs."""
