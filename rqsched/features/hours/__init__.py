"""Hours: counts of the runs that ended in each hour, for a year of statistics after the runs themselves are pruned."""
