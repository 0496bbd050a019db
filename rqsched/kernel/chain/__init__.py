"""The protocol: links fire, runs execute, reconcile compares SQL with Redis and repairs."""
