"""Reconcile: compare SQL with Redis and repair the difference (docs/architecture.md, Protocol).

`passes` makes a pass out of the repairs of `schedules` and `attempts`, and of those that features hand in. A row that
cannot be repaired now is logged and left behind; it never starves the others. Any number of passes may run at once.
"""
