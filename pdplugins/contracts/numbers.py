"""Checks of numbers that hosts report.

``None`` always means *the host did not say*; it never means zero.
"""

from __future__ import annotations

import math
from typing import TypeGuard


def is_number(value: float | None) -> TypeGuard[float]:
    """Return whether `value` is present and finite. Metrics of real hosts are often NaN or missing."""
    return value is not None and math.isfinite(value)
