"""Hours: the ended runs of each hour, counted, for a year of statistics after the runs themselves are pruned."""
