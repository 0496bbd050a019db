"""Backfill: the fires of a past range, on request."""
