"""Quotas: how many schedules a namespace may hold, and how many bytes they may declare."""
