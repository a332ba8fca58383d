"""A performance model over profile tables: linear interpolation and extrapolation, non-decreasing.

Tables are uneven where kernel launches bound a step: a prompt of 90 tokens may be slower than one of 120. A planner
must not conclude that more work takes less time. So tables are made monotone when they are read: each time becomes the
largest time of any equal or smaller work (the upper envelope). The last segment of a table continues beyond it. The
first segment continues below it, but at zero work at least half of the first time remains, because every step reads the
weights and launches its kernels.

A call takes about a microsecond, so planners and the simulator may call it often.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import add

from pdplugins.contracts.workers import Role
from pdplugins.perf.profile import DecodeTable, Power, Profile, TokenTable

Axis = tuple[float, ...]
Rows = tuple[tuple[float, ...], ...]


class Curve:
    """A non-decreasing piecewise linear function of one variable."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self._xs, rows = _extended(tuple(xs), tuple((y,) for y in accumulate(ys, max)))
        self._ys = tuple(row[0] for row in rows)

    def __call__(self, x: float) -> float:
        """Return the value at `x`."""
        index, share = _locate(self._xs, x)
        low = self._ys[index]
        return low + share * (self._ys[index + 1] - low)


class Surface:
    """A piecewise bilinear function of two variables, non-decreasing in both."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], rows: Sequence[Sequence[float]]) -> None:
        along_y = (tuple(accumulate(row, max)) for row in rows)
        self._xs, extended = _extended(tuple(xs), tuple(accumulate(along_y, _pairwise_max)))
        self._ys, columns = _extended(tuple(ys), tuple(zip(*extended, strict=True)))
        self._rows: Rows = tuple(zip(*columns, strict=True))

    def row(self, x: float) -> tuple[float, ...]:
        """Return the values at `x` for y = 0, for every y of the table, and for one y beyond."""
        i, s = _locate(self._xs, x)
        return tuple([low + s * (high - low) for low, high in zip(self._rows[i], self._rows[i + 1], strict=True)])

    def __call__(self, x: float, y: float) -> float:
        """Return the value at (`x`, `y`)."""
        i, s = _locate(self._xs, x)
        j, t = _locate(self._ys, y)
        lower, upper = self._rows[i], self._rows[i + 1]
        low = lower[j] + t * (lower[j + 1] - lower[j])
        high = upper[j] + t * (upper[j + 1] - upper[j])
        return low + s * (high - low)


def _extended(axis: Axis, rows: Rows) -> tuple[Axis, Rows]:
    """Add a row at zero and one beyond the last, so that the outermost segments cover everything outside.

    `rows` never fall in either direction. The same holds for the new rows, and for values extrapolated from them,
    because the increments to the row beyond never fall along it.
    """
    share = axis[0] / (axis[1] - axis[0])
    at_zero = (max(a - share * (b - a), a / 2) for a, b in zip(rows[0], rows[1], strict=True))
    increments = accumulate((b - a for a, b in zip(rows[-2], rows[-1], strict=True)), max)
    zero_row, beyond_row = tuple(accumulate(at_zero, max)), tuple(map(add, rows[-1], increments))
    return (0.0, *axis, 2 * axis[-1] - axis[-2]), (zero_row, *rows, beyond_row)


def _locate(axis: Axis, x: float) -> tuple[int, float]:
    """Return the segment of `axis` for `x`, and the position in it: 0..1 inside, 0 before the axis, above 1 after."""
    index = bisect_right(axis, x, 1, len(axis) - 1) - 1
    start = axis[index]
    return index, max((x - start) / (axis[index + 1] - start), 0.0)


def _pairwise_max(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(map(max, a, b))


class _Imbalance:
    """What experts take beyond their tables when some GPUs have more of their work than others."""

    def __init__(self, profile: Profile) -> None:
        self._more = profile.scale.expert_imbalance - 1
        self._experts = profile.experts if self._more else {}

    def prefill(self, table: TokenTable, tp: int) -> Sequence[float]:
        if (experts := self._experts.get(tp)) is None:
            return table.raw_ms
        added = Curve(experts.prefill.tokens, experts.prefill.raw_ms)
        return [ms + self._more * added(tokens) for tokens, ms in zip(table.tokens, table.raw_ms, strict=True)]

    def decode(self, table: DecodeTable, tp: int) -> Sequence[Sequence[float]]:
        if (experts := self._experts.get(tp)) is None:
            return table.raw_ms
        added = Curve(experts.decode.tokens, experts.decode.raw_ms)
        rows = zip(table.batch, table.raw_ms, strict=True)
        return [[ms + self._more * added(batch) for ms in row] for batch, row in rows]


class TableModel:
    """`PerfModel` over the tables of one profile. See `pdplugins.types.PerfModel` for the meaning of every method.

    Raises KeyError for a tensor-parallel size that the profile does not have; ask `tp_sizes` first.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        scale, more, guesses = profile.scale, _Imbalance(profile), profile.speculation
        # A step computes a token and the guesses of each request, and answers with those that are right.
        width = 1 if guesses is None else 1 + guesses.draft_tokens
        share = 1.0 if guesses is None else guesses.slower / guesses.tokens_per_step

        def curve(table: TokenTable, tp: int) -> Curve:
            times = more.prefill(table, tp)
            return Curve(table.tokens, [(ms * scale.prefill + scale.step_ms) / 1e3 for ms in times])

        def seconds(row: Sequence[float]) -> list[float]:
            return [(ms * scale.decode + scale.step_ms) / 1e3 * share for ms in row]

        self._prefill = {tp: curve(table, tp) for tp, table in profile.prefill.items()}
        self._dense = {tp: curve(table, tp) for tp, table in profile.dense.items()}
        self._decode = {
            tp: Surface(
                [batch / width for batch in table.batch],
                table.context_tokens,
                [seconds(row) for row in more.decode(table, tp)],
            )
            for tp, table in profile.decode.items()
        }

    def prefill_s(self, tokens: float, tp: int) -> float:
        """Seconds to prefill one prompt of `tokens` tokens: T_prefill(ISL, TP) of DOPD Eq. 16."""
        return self._prefill[tp](tokens)

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        """Seconds of one decode step of `batch` requests whose mean context is `context_tokens`."""
        return self._decode[tp](batch, context_tokens)

    def dense_s(self, tokens: float, tp: int) -> float | None:
        """Seconds of a step without its attention, when it computes `tokens` tokens; None without a dense table."""
        dense = self._dense.get(tp)
        return None if dense is None else dense(tokens)

    def prefill_knots(self, tp: int) -> tuple[float, ...]:
        """Token counts of the prefill table and of the dense table."""
        profile = self.profile
        dense = profile.dense[tp].tokens if tp in profile.dense else ()
        return tuple(sorted({*profile.prefill[tp].tokens, *dense}))

    def power(self) -> Power | None:
        """What power caps do to one GPU; None when the profile does not say."""
        return self.profile.power

    def transfer_s(self, tokens: float) -> float:
        """Seconds to move the KV cache of `tokens` tokens: latency + bytes / rate."""
        transfer, memory = self.profile.transfer, self.profile.memory
        latency_s = transfer.latency_s
        if memory.window is not None:
            latency_s += memory.window.held_bytes(tokens) / transfer.bytes_per_s
        return latency_s + tokens * memory.kv_bytes_per_token / transfer.bytes_per_s

    def kv_capacity_tokens(self, tp: int) -> int:
        """Tokens of KV cache that one worker holds: DOPD Eq. 11 over M_token; 0 when the weights do not fit."""
        memory, layout = self.profile.memory, self.profile.layouts.get(tp)
        model_bytes = memory.model_bytes if layout is None else layout.model_bytes
        free_bytes = (memory.gpu_bytes - memory.reserved_bytes) * tp - model_bytes
        return max(int(free_bytes // self._token_bytes(tp)), 0)

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        """Tokens of KV cache that a decode step of `step_s` seconds can read: DOPD Eq. 12 over M_token."""
        bandwidth = self.profile.bandwidth
        read_bytes = step_s * bandwidth.utilisation * tp * bandwidth.bytes_per_s
        return read_bytes / self._token_bytes(tp)

    def _token_bytes(self, tp: int) -> float:
        """Bytes of KV cache of one token, over all GPUs of a worker."""
        memory, layout = self.profile.memory, self.profile.layouts.get(tp)
        held = memory.kv_bytes_per_token + (0.0 if memory.window is None else memory.window.share_bytes)
        return held if layout is None else held * layout.kv_copies

    def tp_sizes(self, role: Role) -> tuple[int, ...]:
        """Tensor-parallel sizes that the tables hold for `role`, ascending."""
        return tuple(sorted(self._prefill if role is Role.PREFILL else self._decode))

    def decode_contexts(self, tp: int) -> tuple[float, ...]:
        """Mean contexts between which `decode_step_s` is linear, ascending. The simulator sums steps with them."""
        return self.profile.decode[tp].context_tokens

    def decode_row_s(self, batch: float, tp: int) -> tuple[float, ...]:
        """Seconds of one decode step at a context of zero, at each of `decode_contexts`, and at one beyond them."""
        return self._decode[tp].row(batch)
