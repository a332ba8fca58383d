"""Fusion: the five papers' ideas and deadlines in one policy. docs/policies/fusion.md explains it."""
