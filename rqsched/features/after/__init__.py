"""After: a schedule starts when a run of another schedule ends."""
