"""What every host needs around a policy: safe wrappers, the budget, decision logs and metrics."""
