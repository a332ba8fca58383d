"""The policies, pure: no I/O, no clock, no randomness, no host."""
