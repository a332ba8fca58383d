"""What to run for a traffic, with how many GPUs, and what it gains: ``pdplugins advise``."""
