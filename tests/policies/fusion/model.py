"""A profile that can be reckoned by hand."""

from __future__ import annotations

from pdplugins.testing import LinearModel

MODEL = LinearModel(
    prefill_fixed_s=0.02, prefill_token_s=1e-4, prefill_square_s=5e-9, decode_fixed_s=0.02, decode_request_s=1e-5,
    decode_token_s=1e-7, transfer_fixed_s=1e-3, kv_tokens=200_000,
)  # fmt: skip
"""20 ms to read the weights and 0.1 ms a prompt token: 2,048 tokens take a quarter of a second."""
