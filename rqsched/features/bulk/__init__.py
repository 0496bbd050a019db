"""Bulk: one operation on the many schedules that match a filter."""
