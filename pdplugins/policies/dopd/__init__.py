"""DOPD: forecast the load, compute the optimal P/D ratio (Liao et al.)."""
