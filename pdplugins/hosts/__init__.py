"""The hosts that drive the policies."""
