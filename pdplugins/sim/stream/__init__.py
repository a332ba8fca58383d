"""Simulations of any length in little memory: requests come one by one, and what has ended is counted and let go."""
