"""Queries: what lists, pages and counts read, by noun. They lock nothing and decide nothing."""
