"""rqsched inside web frameworks. Each module imports its framework; this package imports none."""
