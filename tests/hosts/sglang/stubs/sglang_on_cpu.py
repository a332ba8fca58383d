"""An SGLang plugin for tests: NIXL registers CPU memory as DRAM, though SGLang calls all of its memory VRAM."""

import functools


def register():
    try:
        from nixl._api import nixl_agent  # noqa: PLC0415
    except ImportError:
        return
    for name in ("register_memory", "get_reg_descs", "get_xfer_descs", "prep_xfer_dlist", "get_serialized_descs"):
        if hasattr(nixl_agent, name):
            setattr(nixl_agent, name, _in_dram(getattr(nixl_agent, name)))


def _in_dram(method):
    def dram(value):
        return "DRAM" if isinstance(value, str) and value in ("VRAM", "cuda") else value

    @functools.wraps(method)
    def wrapped(self, *arguments, **keywords):
        return method(self, *map(dram, arguments), **{name: dram(value) for name, value in keywords.items()})

    return wrapped
