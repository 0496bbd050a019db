"""Simulate schedules on a virtual clock, and count the load: how many schedules fire in each coming minute."""
