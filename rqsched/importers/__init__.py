"""Imports: the schedules of other systems, read from where these keep them and written as schedules of ours."""
