"""SGLang's engines behind Dynamo: stock ``dynamo.sglang`` workers, with our plugin where they do both phases."""

from __future__ import annotations

import json
from pathlib import Path

from pdplugins.config import Config
from pdplugins.contracts.workers import Role
from pdplugins.gateway.engines.sglang.ranks import TRANSFERS_HERE, ranks_here
from pdplugins.hosts.dynamo.local.engine import Engine
from pdplugins.hosts.dynamo.local.sglang_options import SglangSpec
from pdplugins.hosts.dynamo.router.engines import SGLANG
from pdplugins.hosts.dynamo.router.places import first
from pdplugins.processes.ports import free_ports
from pdplugins.processes.process import python
from pdplugins.resources import CONFIG_VARIABLE

DUAL = ("--disaggregation-mode", "decode", "--disaggregation-decode-enable-radix-cache")
"""Of a worker that does both phases: the plugin adds the other roles to a decode worker."""
TIMEOUTS = ("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT")
"""How long a leg waits for the other one. Dynamo's worker cannot abort a leg that has not begun to answer."""


class Sglang(Engine):
    """Workers of ``dynamo.sglang``.

    :param config: what the plugin in the workers reads: its section `sglang`, and the batch scheduler.
    """

    kind = SGLANG
    start_s = 900.0  # a large model takes minutes to load

    def __init__(
        self, folder: Path, model: str, config: Config, delay_s: float, broker_url: str, spec: SglangSpec
    ) -> None:
        super().__init__(folder, model, delay_s, broker_url)
        self._config = config
        self._spec = spec

    @property
    def model_folder(self) -> Path:
        """Where the model is."""
        return self._spec.model

    def prepare(self) -> None:
        """Write every file that the processes read."""
        super().prepare()
        for both in (False, True):
            sglang = self._config.sglang.model_copy(update={"dual_role": both})
            config = self._config.model_copy(update={"sglang": sglang})
            self._config_file(both=both).write_text(json.dumps(config.model_dump(mode="json")), encoding="utf-8")

    def worker(self, role: Role, *, at_once: bool, both: bool = False) -> list[str]:
        """Return the command of one worker, which does `both` phases or that of its role."""
        mode = DUAL if both else ("--disaggregation-mode", role.value)
        return python(
            "dynamo.sglang",
            *("--model-path", str(self.model_folder), "--served-model-name", self._model, "--host", "127.0.0.1"),
            *("--endpoint", f"dyn://{first(role).path}", *mode, "--disaggregation-transfer-backend", "nixl"),
            # A new one each time, so that other workers do not take this one for one that has died.
            *("--disaggregation-bootstrap-port", str(free_ports(1)[0]), *self._spec.arguments),
            delay_s=0.0 if at_once else self._delay_s,
            executable=self._spec.python,
        )

    def worker_environment(self, worker: str, *, both: bool) -> dict[str, str]:
        """Return the environment of a worker."""
        patience = dict.fromkeys(TIMEOUTS, f"{self._config.gateway.first_token_s:.0f}")
        defaults = patience | TRANSFERS_HERE | ranks_here(worker, self._folder, self._spec.arguments)
        ours = {CONFIG_VARIABLE: str(self._config_file(both=both))}
        return defaults | super().worker_environment(worker, both=both) | ours

    def _config_file(self, *, both: bool) -> Path:
        return self._folder / ("dual.yaml" if both else "stock.yaml")
