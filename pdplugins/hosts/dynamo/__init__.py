"""NVIDIA Dynamo 1.4: planner plugins, offline replay and the local launcher."""
