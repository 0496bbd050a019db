"""The kernel: a schedule fires, its run is claimed, executed and settled. It imports no feature.

`decide` holds pure decisions, `store` and `queries` the SQL of schedules and runs, `transport` Redis, and `chain` the
protocol between them.
"""
