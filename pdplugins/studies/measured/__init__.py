"""Simulates measured rows of large models, aggregated and disaggregated."""
