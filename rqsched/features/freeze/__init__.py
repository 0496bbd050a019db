"""Freeze: let nothing begin, in one namespace or everywhere, until an operator ends the freeze."""
