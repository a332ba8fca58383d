"""AMPD: where and in which order the prefills of multi-round requests run, and how many workers to deploy for them."""
