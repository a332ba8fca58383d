"""Makes profile files: measures an endpoint, asks aiconfigurator, computes a roofline, reads Dynamo's tables."""
