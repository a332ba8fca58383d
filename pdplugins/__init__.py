"""Policies of five papers for prefill/decode-disaggregated LLM serving, as plugins of Dynamo and SGLang."""

import pluggy

__version__ = "0.1.0"

hookimpl = pluggy.HookimplMarker("pdplugins")
"""Marks a function of yours as the implementation of a hook of :mod:`pdplugins.hookspecs`."""
