"""Reconcile: compare SQL with Redis and repair the difference (docs/architecture.md, Protocol).

A pass makes all repairs once: those in `schedules` and `attempts`, and those of features. A row that cannot be repaired
now is logged and left, so that it never blocks other rows. Any number of passes may run at once.
"""
