"""Notifications: what a change owes is written in its transaction (`notifier`), and jobs deliver it (`delivering`)."""
