"""The router's process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from pdplugins.config import load
from pdplugins.errors import HostError, PdpluginsError, one_line
from pdplugins.hosts.dynamo.router.component import RouterComponent
from pdplugins.hosts.dynamo.router.engines import KINDS, MOCKER
from pdplugins.hosts.dynamo.router.places import ROUTER, STATE
from pdplugins.hosts.dynamo.runtime import make_runtime, namespace
from pdplugins.processes.ending import end_within, on_stop
from pdplugins.processes.garbage import settle
from pdplugins.redaction import redact_logs
from pdplugins.runtime.assembly import build_deployment

log = logging.getLogger("pdplugins.router")

CUT_OFF_S = 5.0
"""What the process may take to end after its drain."""


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="pdplugins.hosts.dynamo.router", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the config file with the policies")
    parser.add_argument("--model-path", required=True, help="folder of the model: the frontend reads its tokenizer")
    parser.add_argument("--model-name", required=True, help="the model that clients name")
    parser.add_argument("--engine", choices=KINDS, default=MOCKER.name, help="engine of the workers")
    parser.add_argument("--decision-log", type=Path, help="file to append decisions to")
    return parser.parse_args()


async def register(endpoint: Any, path: str, name: str) -> None:
    """Register as the one worker of the model that the frontend knows."""
    from dynamo.llm import ModelInput, ModelType, WorkerType, register_model  # noqa: PLC0415 - brings Dynamo in

    await register_model(
        model_input=ModelInput.Tokens,
        model_type=ModelType.Chat | ModelType.Completions,
        endpoint=endpoint,
        model_path=path,
        model_name=name,
        worker_type=WorkerType.Aggregated,
    )


async def serve(given: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT; then finish what is in flight. Raises HostError where serving ends by itself."""
    config = load(given.config)
    kind = KINDS[given.engine]
    component = RouterComponent(
        config, build_deployment(config), decision_log=given.decision_log, namespace=namespace(), kind=kind
    )
    runtime = make_runtime()
    await component.start(runtime)
    endpoint = runtime.endpoint(ROUTER)
    endpoint.metrics.register_prometheus_expfmt_callback(component.exposition)
    await register(endpoint, given.model_path, given.model_name)
    stopped, within_s = asyncio.Event(), config.gateway.drain_s + CUT_OFF_S
    signals: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        signals.append(number)
        stopped.set()

    on_stop(stop, within_s, (signal.SIGTERM, signal.SIGINT))
    serving = asyncio.gather(
        endpoint.serve_endpoint(component.generate), runtime.endpoint(STATE).serve_endpoint(component.state)
    )
    settle()
    serving.add_done_callback(lambda _: stopped.set())
    await stopped.wait()
    end_within(within_s)
    if not serving.done():
        try:
            await endpoint.unregister_endpoint_instance()  # the frontend sends nothing more
        except Exception as error:  # discovery has lost it already; what is in flight is finished all the same
            log.warning("not taken out of discovery: %s", one_line(error))
    await component.stop(config.gateway.drain_s)
    runtime.shutdown()
    said = await asyncio.gather(serving, return_exceptions=True)
    if not signals:
        raise HostError(f"Dynamo no longer serves it: {one_line(said[0])}")


def main() -> None:
    """Run the router."""
    import uvloop  # noqa: PLC0415 - only this process needs it

    logging.basicConfig(level=logging.INFO)
    redact_logs(logging.root.handlers, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        uvloop.run(serve(options()))
    except PdpluginsError as error:
        sys.stderr.write(f"pdplugins.hosts.dynamo.router: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
