"""The kernel fires schedules, and claims, executes and settles their runs. It imports no feature.

`decide` has pure decisions, `store` and `queries` have the SQL of schedules and runs, `transport` talks to Redis, and
`chain` is the protocol between them.
"""
