"""DOPD (Liao et al.): forecasts the load, and sizes the pools by the optimal P/D ratio."""
