"""Registers what this package adds."""
