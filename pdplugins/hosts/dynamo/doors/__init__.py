"""The ways by which our planners get into Dynamo."""
