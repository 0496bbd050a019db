"""Quotas: how many schedules a namespace may have, and how many bytes their declarations may have."""
