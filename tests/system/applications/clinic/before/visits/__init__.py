"""Visits of patients."""
