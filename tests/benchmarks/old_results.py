"""Results that are known to be older than the code they measure: to be made again. The tests pass them over."""

OLD = {"fidelity-silicon"}
"""The simulator has got settings that are off by default, and one of the files of that result is not at hand."""
