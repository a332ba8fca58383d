"""Dynamo's offline replay as a host: its compiled simulator, with our planners (door d) or Dynamo's own in its loop."""
