"""Power of the GPUs of one node: backends for their drivers, the cap transaction, and what keeps it up on a machine."""
