"""Shows a profile: a table of its times at usual sizes, and a plot."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group
from rich.table import Table

from pdplugins.contracts.workers import Role
from pdplugins.errors import printable
from pdplugins.files import whole
from pdplugins.perf.profile import Profile
from pdplugins.perf.table import TableModel
from pdplugins.terminal import plain

PROMPTS = (128, 512, 2048, 8192, 32_768)
BATCHES = (1, 8, 64, 256)
CONTEXTS = (512, 2048, 8192)


def summary(name: str, profile: Profile) -> Group:
    """Return a summary of `profile` for a terminal."""
    perf = TableModel(profile)
    return Group(_facts(name, profile, perf), "", _prefill(perf), "", *(_decode(perf, tp) for tp in _sizes(perf)))


def _sizes(perf: TableModel) -> tuple[int, ...]:
    return perf.tp_sizes(Role.DECODE)


def _facts(name: str, profile: Profile, perf: TableModel) -> Table:
    memory, transfer = profile.memory, profile.transfer
    capacity = ", ".join(f"TP {tp}: {perf.kv_capacity_tokens(tp):,}" for tp in _sizes(perf))
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_row("profile", plain(f"{name} ({profile.kind})"))
    table.add_row("model, GPU", plain(f"{profile.model} on {profile.gpu}"))
    table.add_row("source", plain(profile.provenance.source))
    table.add_row("command", plain(profile.provenance.command))
    for note in profile.provenance.notes:
        table.add_row("note", plain(note))
    table.add_row("KV cache", f"{memory.kv_bytes_per_token / 1024:.0f} KiB a token; tokens in a worker: {capacity}")
    table.add_row("transfer", f"{1e3 * transfer.latency_s:g} ms + bytes / {transfer.bytes_per_s / 1e9:g} GB/s")
    table.add_row("dense table", ", ".join(f"TP {tp}" for tp in sorted(profile.dense)) or "none")
    if (power := profile.power) is not None:
        caps = zip(power.cap_w, power.prefill_slow, power.decode_slow, strict=True)
        slow = ", ".join(f"{cap:g} W {prefill:g} / {decode:g}" for cap, prefill, decode in caps)
        table.add_row("power", f"prefill / decode take, under a cap, times: {slow}")
    return table


def _prefill(perf: TableModel) -> Table:
    table = Table("prefill of one prompt (ms)", *(f"{tokens:,} tokens" for tokens in PROMPTS), box=None)
    for tp in perf.tp_sizes(Role.PREFILL):
        table.add_row(f"TP {tp}", *(f"{1e3 * perf.prefill_s(tokens, tp):.1f}" for tokens in PROMPTS))
    return table


def _decode(perf: TableModel, tp: int) -> Table:
    table = Table(f"decode step, TP {tp} (ms)", *(f"batch {batch}" for batch in BATCHES), box=None)
    for context in CONTEXTS:
        steps = (f"{1e3 * perf.decode_step_s(batch, context, tp):.1f}" for batch in BATCHES)
        table.add_row(f"context {context:,}", *steps)
    return table


def draw(name: str, profile: Profile, path: Path) -> None:
    """Plot prefill over prompt length and decode over batch to `path`. Raises ConfigError when it cannot be written."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load, and only plots need it

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    perf = TableModel(profile)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for tp in perf.tp_sizes(Role.PREFILL):
        tokens = profile.prefill[tp].tokens
        left.plot(tokens, [1e3 * perf.prefill_s(t, tp) for t in tokens], marker=".", label=f"TP {tp}")
    for tp in _sizes(perf):
        batches = profile.decode[tp].batch
        right.plot(batches, [1e3 * perf.decode_step_s(b, 2048, tp) for b in batches], marker=".", label=f"TP {tp}")
    left.set(xscale="log", yscale="log", xlabel="prompt (tokens)", ylabel="prefill (ms)")
    right.set(xlabel="batch (requests of 2,048 tokens of context)", ylabel="decode step (ms)", ylim=(0, None))
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.suptitle(printable(f"{name} ({profile.kind})"), parse_math=False)
    try:
        with whole(path) as scratch:
            figure.savefig(scratch)
    finally:
        plt.close(figure)
