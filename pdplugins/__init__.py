"""Policies from five papers on prefill/decode-disaggregated LLM serving, as plugins for Dynamo and SGLang."""

import pluggy

__version__ = "0.1.0"

hookimpl = pluggy.HookimplMarker("pdplugins")
"""Marks a function of a plugin as the implementation of a hook of :mod:`pdplugins.hookspecs`."""
