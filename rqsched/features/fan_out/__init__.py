"""Fan-out: one run handles many targets, each in a separate job."""
