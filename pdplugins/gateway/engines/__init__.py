"""The engines that the gateway speaks to."""
