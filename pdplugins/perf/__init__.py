"""Performance models over profile tables."""
