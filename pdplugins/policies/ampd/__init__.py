"""AMPD: places and orders the prefills of multi-round requests, and plans how many workers to deploy for them."""
