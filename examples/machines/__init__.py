"""A library's loans: each is a state machine in a table, and one schedule reminds of all that are due."""
