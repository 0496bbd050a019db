"""Fan-out: a run names its targets, each gets a job, and the run ends with the last of them.

`resolver` asks which they are, `dispatch` writes them and their jobs, `execution` handles one and sees the last.
"""
