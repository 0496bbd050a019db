"""The comparison of schedulers under faults: the same faults for each setup, judged by what the job itself wrote."""
