"""Freeze: nothing begins, in one namespace or in the whole installation, until somebody says so."""
