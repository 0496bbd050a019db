"""Pruning: delete history beyond its retention in small steps."""
