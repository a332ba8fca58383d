"""Compares the simulator with measurements, with another simulator, and with tables of papers."""
