"""Makes profile files: from a measured endpoint, from aiconfigurator, from a roofline, or from Dynamo's tables."""
