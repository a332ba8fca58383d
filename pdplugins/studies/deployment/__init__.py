"""AMPD's offline deployment planner: simulates coefficients, solves a program for plans, and simulates the plans."""
