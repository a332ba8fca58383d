"""DynaServe: splits requests at any token into two micro-requests, and composes batches that keep the TBT SLO."""
