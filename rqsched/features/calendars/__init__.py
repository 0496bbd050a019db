"""Calendars: named sets of days and times on which schedules do not fire. Many schedules share a calendar."""
