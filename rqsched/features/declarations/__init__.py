"""Declarations: schedules written in code or in a file, and the sync that makes the stored ones equal to them."""
