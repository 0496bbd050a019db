"""Namespaces: the count of all that a namespace holds, and its deletion."""
