"""The queries of lists, pages and counts, a file for each noun. They lock nothing and decide nothing."""
