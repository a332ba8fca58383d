"""Several hosts on one machine: network namespaces on a bridge, whose links can be cut, and processes in them.

Everything lives in namespaces of its own (`isolate`), so that the kernel takes it all away with the script's process,
however that ends.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pdplugins.processes.process import Process

NETWORK = "10.9.0."
OUTSIDE = f"{NETWORK}254"
"""Address of the script, which is on no host."""
BRIDGE = "br0"
INSIDE = "SEVERAL_HOSTS_INSIDE"
"""Set in the process that has a network of its own."""
AGAIN_S = 1.0
"""Until a process that has ended is started again."""
NEEDED = {"ip": "iproute2", "unshare": "util-linux", "etcd": "etcd-server", "nats-server": "nats-server"}
"""Programs, and Debian's packages of them."""


def lacking() -> str | None:
    """Say what this machine lacks for several hosts; None where it lacks nothing."""
    for program, package in NEEDED.items():
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install {package})"
    command = [*isolated(), "ip", "link", "add", BRIDGE, "type", "bridge"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"no network namespaces here: {tried.stderr.strip()}" if tried.returncode else None


def isolated() -> list[str]:
    """Return what a command begins with that is to have networks, mounts and processes of its own."""
    return ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def isolate() -> None:
    """Begin this script anew in namespaces of its own; return in there."""
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", [*isolated(), sys.executable, *sys.argv])  # noqa: S606
    ip("link", "set", "lo", "up")


def ip(*words: str) -> None:
    """Run iproute2. Raises RuntimeError with what it said."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Hosts:
    """Hosts by name, all on one bridge."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)  # where iproute2 keeps the names of hosts
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{OUTSIDE}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for name in names:
            ip("netns", "add", name)
            ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"to-{name}", "master", BRIDGE, "up")
            ip("-n", name, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "addrgenmode", "none")  # Dynamo takes an address of IPv6 where one is
            for link in ("lo", "eth0"):
                ip("-n", name, "link", "set", link, "up")

    def address(self, name: str) -> str:
        """Return the address of a host."""
        return f"{NETWORK}{1 + self.names.index(name)}"

    def cut(self, name: str) -> None:
        """Cut the link of a host: whatever is sent over it is lost, and nobody is told."""
        ip("link", "set", f"to-{name}", "nomaster")

    def heal(self, name: str) -> None:
        """Mend that link."""
        ip("link", "set", f"to-{name}", "master", BRIDGE)

    def on(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` on a host."""
        return ["ip", "netns", "exec", name, *command]


class Kept:
    """A process that is started again whenever it ends, as an init system or a kubelet does it."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], logs: Path) -> None:
        self.name = name
        self.starts = 0
        self._command, self._env, self._log = command, env, logs / f"{name}.log"
        self._closed = False
        self.start()

    def start(self) -> None:
        if not self._closed:
            self.starts += 1
            self._said = self._log.stat().st_size if self._log.exists() else 0
            self.process = Process.start(
                self.name, self._command, env=self._env, log=self._log, on_exit=lambda _: self._again()
            )

    def _again(self) -> None:
        asyncio.get_running_loop().call_later(AGAIN_S, self.start)

    def said(self) -> str:
        """Return what it has logged since it was last started."""
        with self._log.open("rb") as log:
            log.seek(self._said)
            return log.read().decode(errors="replace")

    def close(self) -> Process:
        """Start it no more; returns the process that is still to be stopped."""
        self._closed = True
        return self.process


class Etcd:
    """What is registered in etcd, read through its HTTP gateway: that of a moment ago, while etcd is out of reach.

    It is the discovery of a `Fleet`, as `Registrations` is on one host.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.instances: dict[str, list[str]] = {}
        """Endpoints by instance."""
        self.names: dict[str, list[str]] = {}
        """Instances by the name of their worker."""

    def refresh(self) -> None:
        """Look again. Raises OSError where etcd does not answer."""
        instances: dict[str, list[str]] = {}
        for key in self._range("v1/instances/"):
            place, _, instance = key.rpartition("/")
            instances.setdefault(instance, []).append(place.removeprefix("v1/instances/"))
        names: dict[str, set[str]] = {}
        for key, value in self._range("v1/mdc/").items():
            name = json.loads(value)["card_json"]["runtime_config"].get("stable_routing_id")
            instance = key.rpartition("/")[2]
            if name is not None and instance in instances:
                names.setdefault(name, set()).add(instance)
        self.instances = instances
        self.names = {name: sorted(of) for name, of in names.items()}

    def _range(self, prefix: str) -> dict[str, str]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        body = {key: base64.b64encode(text.encode()).decode() for key, text in (("key", prefix), ("range_end", end))}
        asked = urllib.request.Request(f"{self.url}/v3/kv/range", json.dumps(body).encode())  # noqa: S310
        with urllib.request.urlopen(asked, timeout=1.0) as answer:  # noqa: S310 - it is http
            found: list[dict[str, Any]] = json.load(answer).get("kvs", [])
        return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"]).decode() for kv in found}

    async def follow(self, every_s: float, told: Callable[[], None] = lambda: None) -> None:
        """Look again and again."""
        while True:
            try:
                await asyncio.to_thread(self.refresh)
                told()
            except (OSError, ValueError):
                pass
            await asyncio.sleep(every_s)

    def serving(self) -> dict[str, str]:
        """Return the instance of every worker by its name."""
        return {name: of[0] for name, of in self.names.items()}

    def remove(self, instance: str) -> None:
        """Leave it: the lease of a process that has ended runs out."""
