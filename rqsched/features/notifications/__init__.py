"""Notifications are written in the transaction that owes them (`outbox`); jobs send them (`chain`, `sender`)."""
