"""Notifications are written in the transaction of their event (`outbox`); jobs send them later (`chain`, `sender`)."""
