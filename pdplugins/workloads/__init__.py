"""Traces, load and reports."""
