"""Simulation of schedules on a virtual clock, and the load: how many schedules fire in each coming minute."""
