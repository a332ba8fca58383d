"""AMPD's offline deployment planner: coefficients from the simulator, a plan from a program, and the proof of it."""
