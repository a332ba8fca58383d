"""`pdplugins gateway --launch` with real SGLang servers."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from benchmarks.rig import servers
from tests.hosts.dynamo.local.serve import below
from tests.sockets import beyond_this_machine, listening

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
START_S = 400.0
GIVEN = ("--host", "127.0.0.1", "--sleep-on-idle")
"""What the gateway says itself."""
OPTIONS = [*(flag for flag in servers.FLAGS if flag not in GIVEN), "--max-total-tokens", "4096"]


@pytest.mark.parametrize("tree", servers.trees()[-1:], ids=servers.version_of)
def test_nothing_of_it_listens_beyond_this_machine(tree: Path, model: Path, tmp_path: Path) -> None:
    """With the newest version: the gateway gives the servers of all versions the same options."""
    config = {"router": "arrow", "sglang": {"dual_role": True}}
    config["deployment"] = {role: {"replicas": 1} for role in ("prefill", "decode")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    launch = shlex.join([str(model), *OPTIONS, "--grammar-backend", servers.GRAMMAR[servers.version_of(tree)]])
    command = [Path(sys.executable).with_name("pdplugins"), "gateway", "--config", tmp_path / "config.yaml"]
    out = tmp_path / "out"
    with out.open("w") as file:
        gateway = subprocess.Popen(
            [*command, "--launch", launch, "--port", "0", "--log-dir", tmp_path / "logs"],
            env={**os.environ, **servers.on_cpu(tree)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline_s = time.monotonic() + START_S
        while not (port := re.search(r"gateway on http://127.0.0.1:(\d+)", out.read_text())):
            assert gateway.poll() is None, out.read_text()
            assert time.monotonic() < deadline_s, out.read_text()
            time.sleep(0.2)
        asked = {"input_ids": [*range(4, 40)], "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}
        body, kind = json.dumps(asked).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port[1]}/generate", body, kind)
        with urllib.request.urlopen(request, timeout=60.0) as answer:  # noqa: S310 - http, as the line above says
            assert len(json.load(answer)["output_ids"]) == 5
        pids = [gateway.pid, *below(gateway.pid)]
        assert len(listening(pids)) > 4
        assert beyond_this_machine(pids) == set()
        gateway.send_signal(signal.SIGINT)
        assert gateway.wait(60.0) == 0
    finally:
        gateway.kill()
        gateway.wait()
