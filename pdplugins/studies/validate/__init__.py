"""Holds the simulator against measurements, against another simulator, and against the tables of papers."""
