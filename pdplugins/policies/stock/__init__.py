"""Policies that serving frameworks have without pdplugins, as baselines."""
