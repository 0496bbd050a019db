"""After: a schedule starts a run when a run of another schedule ends."""
