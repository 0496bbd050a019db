"""Pruning: history beyond its retention is deleted in small steps."""
