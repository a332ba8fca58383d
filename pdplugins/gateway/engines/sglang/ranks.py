"""Keeps what SGLang servers open for themselves on loopback: sockets of their ranks, and those of KV transfers.

SGLang's ``--host`` is about its HTTP port only. PyTorch's store of distributed runs (TCPStore) listens on every
address; Gloo, NCCL, and UCX below NIXL listen on those of the machine's network.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

STORE = "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"
"""Where the ranks of a server meet."""
ON_SEVERAL_HOSTS = {"--dist-init-addr", "--nccl-init-addr", "--nnodes"}
"""Options of a server whose ranks are on several hosts."""
SEVERAL_GROUPS = {"--dp", "--dp-size", "--data-parallel-size"}
"""Options of a server with several groups of ranks, which must not meet in the same place."""
TRANSFERS_HERE = {"SGLANG_HOST_IP": "127.0.0.1", "UCX_NET_DEVICES": "lo"}
"""Environment of servers that exchange KV cache with servers of this machine only. Between GPUs it takes no network."""


def ranks_here(name: str, folder: Path, options: Sequence[str]) -> dict[str, str]:
    """Return the environment that keeps the ranks of a server on loopback; an empty one where they need the network.

    :param name: of the server. At each start its ranks meet in a new file of `folder`.
    :param options: of the server.
    """
    given = {option.partition("=")[0] for option in options}
    if ON_SEVERAL_HOSTS & given:
        return {}
    file = (folder / f"{name}-{uuid4().hex}.store").absolute()
    store = {} if SEVERAL_GROUPS & given else {STORE: file.as_uri()}
    return {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", **store}
