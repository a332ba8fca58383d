"""The bound: what no policy can beat, even with knowledge of the future. docs/bound.md has the proof and its terms."""
