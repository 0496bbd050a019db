"""Namespaces: count everything that a namespace holds, and delete it."""
