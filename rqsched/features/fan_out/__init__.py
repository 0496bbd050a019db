"""Fan-out: one run for many targets, each in a job of its own."""
