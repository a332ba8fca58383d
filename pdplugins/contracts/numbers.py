"""What hosts say in numbers.

``None`` always means *the host did not say*; it never means zero.
"""

from __future__ import annotations

import math
from typing import TypeGuard


def is_number(value: float | None) -> TypeGuard[float]:
    """Tell whether `value` is there and finite. Metrics of real hosts are NaN or missing as a matter of course."""
    return value is not None and math.isfinite(value)
