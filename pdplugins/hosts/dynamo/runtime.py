"""Dynamo's runtime of a process of ours, as the environment says: `dynamo serve` and clusters differ in it alone."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from pdplugins.hosts.dynamo.router.places import NAMESPACE


def make_runtime() -> Any:
    """Return Dynamo's ``DistributedRuntime`` on this event loop.

    Where nothing is said, it is as in every process of Dynamo: etcd for discovery, TCP for requests, ZMQ for events.
    """
    from dynamo.runtime import DistributedRuntime  # noqa: PLC0415 - brings Dynamo in

    discovery = os.environ.get("DYN_DISCOVERY_BACKEND", "etcd")
    requests, events = os.environ.get("DYN_REQUEST_PLANE", "tcp"), os.environ.get("DYN_EVENT_PLANE")
    return DistributedRuntime(asyncio.get_running_loop(), discovery, requests, event_plane=events)


def namespace() -> str:
    """Return the namespace of the workers."""
    return os.environ.get("DYN_NAMESPACE", NAMESPACE)
