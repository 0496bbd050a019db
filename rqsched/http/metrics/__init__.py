"""`/metrics` for Prometheus: read from SQL and Redis, so that one web process tells of all workers."""
