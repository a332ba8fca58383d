"""The cluster that the tests of Arrow's router start from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.policies.arrow.cluster import Cluster


@pytest.fixture
def cluster() -> Callable[..., Cluster]:
    return Cluster
