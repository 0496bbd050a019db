"""Reconcile: compare SQL with Redis and repair the difference (docs/architecture.md, Protocol).

A pass makes all repairs once: the repairs in `schedules` and `lost_attempts`, and the repairs of features. If a row
cannot be repaired now, this is logged and the pass goes on with the next row. Any number of passes may run at once.
"""
