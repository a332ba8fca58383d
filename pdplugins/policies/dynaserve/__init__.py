"""DynaServe: requests split at any token into two micro-requests, and batches that keep the TBT SLO."""
