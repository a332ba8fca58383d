"""An SGLang plugin for tests: what stands in for a GPU.

* NIXL registers CPU memory as DRAM, though SGLang calls all of its memory VRAM.
* Sampling with seeds (`--enable-deterministic-inference`) takes the attention backend of CPUs, and the hash that SGLang
  computes in a Triton kernel is computed in PyTorch. Kernels that make sums independent of the batch are left out.
* KV cache that is sent to a marked room is corrupted first, for negative controls.
* While the file that RIG_LINK_DOWN names is there, no KV cache is sent.
* RIG_KV_FREED_AT_ONCE: a server frees KV cache of an aborted transfer while it may still be written to, for a negative
  control. Versions after 0.5.16 have a variable of their own for it (`FREED_AT_ONCE` in benchmarks/rig/stage.py).
"""

import ctypes
import functools
import gc
import multiprocessing
import os
import pathlib
import time

PYTHONS_THRESHOLD = (700, 10, 10)


def register():
    if multiprocessing.parent_process() is not None:  # an engine, whose imports are done: see sitecustomize.py
        gc.set_threshold(*PYTHONS_THRESHOLD)
    _nixl_in_dram()
    _seeds()
    _transfers()
    if "RIG_KV_FREED_AT_ONCE" in os.environ:
        from pdplugins.hosts.sglang import older  # noqa: PLC0415

        older.HOLD_S = 0.0


def _nixl_in_dram():
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


def _seeds():
    from sglang.srt import server_args  # noqa: PLC0415
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    server_args.DETERMINISTIC_ATTENTION_BACKEND_CHOICES.append("torch_native")
    server_args.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND.append("torch_native")
    for target, stand_in in (
        ("sglang.srt.batch_invariant_ops.enable_batch_invariant_mode", lambda *_: None),
        ("sglang.kernels.ops.sampling.murmur_hash.murmur_hash32", murmur_hash32),
    ):
        HookRegistry.register(target, stand_in, HookType.REPLACE)


def murmur_hash32(seed, positions, columns):
    """MurmurHash3 of (seed, position, column) for each row and column, as `uint32`."""
    import torch  # noqa: PLC0415

    seed, positions = (values.to(torch.int64).unsqueeze(1) for values in (seed, positions))
    hashed = torch.zeros((), dtype=torch.int64)
    for block in (_low(seed), _low(seed >> 32), _low(positions), columns.to(torch.int64).unsqueeze(0)):
        mixed = _low(_rotated(_low(block * 0xCC9E2D51), 15) * 0x1B873593)
        hashed = _low(_rotated(hashed ^ mixed, 13) * 5 + 0xE6546B64)
    hashed = hashed ^ 16
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashed = _low((hashed ^ hashed >> shift) * factor)
    return (hashed ^ hashed >> 16).to(torch.uint32)


def _low(values):
    return values & 0xFFFFFFFF


def _rotated(values, bits):
    return _low(values << bits | values >> 32 - bits)


def _transfers():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    manager = "sglang.srt.disaggregation.nixl.conn.NixlKVManager."
    HookRegistry.register(manager + "add_transfer_request", _corrupted, HookType.AROUND)
    HookRegistry.register(manager + "send_kvcache", _late, HookType.AROUND)


def _late(original, manager, *arguments, **keywords):
    while (down := os.environ.get("RIG_LINK_DOWN")) and pathlib.Path(down).exists():
        time.sleep(0.01)
    return original(manager, *arguments, **keywords)


def _corrupted(original, manager, bootstrap_room, kv_indices, *arguments, **keywords):
    if bootstrap_room >> 32 == 0xBAD and len(kv_indices):
        buffers = zip(manager.kv_args.kv_data_ptrs, manager.kv_args.kv_item_lens, strict=True)
        for start, bytes_per_token in buffers:
            _negate(start + int(kv_indices[-1]) * bytes_per_token, bytes_per_token)
    return original(manager, bootstrap_room, kv_indices, *arguments, **keywords)


def _negate(address, length):
    """Change the sign of the `float32` in these bytes."""
    for sign in range(address + 3, address + length, 4):
        byte = ctypes.c_uint8.from_address(sign)
        byte.value ^= 0x80
