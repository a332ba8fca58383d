"""The policies. They are pure: they do no I/O, read no clock, draw numbers only from a seed, and know no host."""
