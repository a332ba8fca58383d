"""Stands in for SGLang where the gateway starts servers."""
