"""Run an ended run again, as a new run for the same occurrence: the page of the dashboard."""
