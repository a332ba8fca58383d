"""Traces: readers, generators, transforms, and the client that replays a trace."""
