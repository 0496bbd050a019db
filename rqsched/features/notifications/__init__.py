"""Notifications are written in the transaction that owes them (`notifier`), and jobs deliver them (`chain`)."""
