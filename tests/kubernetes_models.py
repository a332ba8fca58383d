"""Kubernetes' own models, for tests of what is written for a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest


def as_kubernetes_reads(data: dict[str, Any], model: str) -> Any:
    """Return what of `data` Kubernetes' own client knows. Its models are made from the published schemas."""
    client = pytest.importorskip("kubernetes.client", reason="comes with Dynamo")
    api, answer = client.ApiClient(), type("Answer", (), {"data": json.dumps(data)})
    return api.sanitize_for_serialization(api.deserialize(answer, model))
