"""`/metrics` for Prometheus: read from SQL and Redis, so that one web process reports on all workers."""
