"""Declarations: schedules declared in code or in a file, and the sync that writes them to the database."""
