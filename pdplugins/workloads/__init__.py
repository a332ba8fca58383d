"""Traces: readers, generators, changes to them, and the client that replays one."""
