"""Reconcile: compare SQL with Redis and repair the difference (docs/architecture.md, Protocol).

`passes` makes a pass out of the repairs in `schedules` and `attempts` and the repairs of features. A row that cannot be
repaired now is logged and left, so that it never blocks other rows. Any number of passes may run at once.
"""
