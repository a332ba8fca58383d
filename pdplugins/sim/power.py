"""What a power cap does to a GPU, and the tick of a power controller."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from pdplugins.types import Role


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """How much longer each phase takes under a cap, and what it draws; linear between the points."""

    cap_w: tuple[float, ...]
    """Caps, ascending; the last one is the one at start."""
    prefill_slow: tuple[float, ...]
    """Time of a prefill step over its time without cap, at each of `cap_w`."""
    decode_slow: tuple[float, ...]
    settle_s: float = 0.3
    """Seconds from setting a cap until the device keeps it."""
    idle_w: float = 100.0
    prefill_w: float = 700.0
    """Draw of prefill without cap."""
    decode_w: float = 450.0

    def slow(self, cap_w: float) -> tuple[float, float]:
        """Return the slowdown of prefill and of decode under `cap_w`."""
        return _at(self.cap_w, self.prefill_slow, cap_w), _at(self.cap_w, self.decode_slow, cap_w)

    def draw_w(self, role: Role, busy: bool, cap_w: float) -> float:
        """Return the draw of a GPU under `cap_w`."""
        wanted = (self.prefill_w if role is Role.PREFILL else self.decode_w) if busy else self.idle_w
        return min(wanted, cap_w)


def _at(xs: tuple[float, ...], ys: tuple[float, ...], x: float) -> float:
    if len(xs) == 1:
        return ys[0]
    x = min(max(x, xs[0]), xs[-1])
    index = min(bisect_right(xs, x), len(xs) - 1)
    left, right = xs[index - 1], xs[index]
    return ys[index - 1] + (ys[index] - ys[index - 1]) * (x - left) / (right - left)
