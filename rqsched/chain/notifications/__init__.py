"""Notifications: what a change owes is written in its transaction (`notifier`), and brought by jobs (`delivering`)."""
