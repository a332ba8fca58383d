"""Results that are known to be older than the code they measure: to be made again. The tests pass them over."""

OLD: set[str] = {"fusion-ablation", "fusion-sensitivity"}
"""Fusion has changed since it was deceived; its page says so. Since its ablation it looks at less of large pools."""
