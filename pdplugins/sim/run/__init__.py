"""From a config and a trace to a result."""
