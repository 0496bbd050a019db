"""Hours: counts of ended runs by hour. They give a year of statistics, even after the runs themselves are pruned."""
