"""Calendars: named days and times on which schedules do not fire, kept in one place for many schedules."""
