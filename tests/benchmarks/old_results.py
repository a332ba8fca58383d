"""Results that are known to be older than the code they measure: to be made again. The tests pass them over."""

OLD: set[str] = set()
