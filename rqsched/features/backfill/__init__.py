"""Backfill: fire the occurrences of a past range on request."""
