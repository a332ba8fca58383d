"""Runs simulations: a config and a trace in, a result out."""
