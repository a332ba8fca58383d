"""``pdplugins gateway``."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Annotated

import typer

from pdplugins import config as configs
from pdplugins.config import Config
from pdplugins.hosts.sglang.gateway.settings import GatewaySettings

DEFAULTS = GatewaySettings()


def gateway(  # noqa: PLR0913, PLR0917 - one argument for each option
    worker: Annotated[
        list[str],
        typer.Option(
            metavar="URL[,bootstrap_port=N,role=R,kind=K]",
            help="An SGLang server. role: prefill | decode, the label at start of a dual-role server; "
            "kind: dual | prefill | decode | unified where it cannot be seen.",
        ),
    ],
    config: Annotated[str, typer.Option(help="A config file, or the name of a shipped one.")] = "stock-least-loaded",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Longest time of a request.")] = DEFAULTS.timeout_s,
    first_token_s: Annotated[
        float, typer.Option(min=0.1, help="Longest wait for a worker's first token; then the request goes elsewhere.")
    ] = DEFAULTS.first_token_s,
    silence_s: Annotated[float, typer.Option(min=0.1, help="Longest silence within a stream.")] = DEFAULTS.silence_s,
    retries: Annotated[int, typer.Option(min=0, help="How often a request may move on.")] = DEFAULTS.retries,
    poll_s: Annotated[float, typer.Option(min=0.01, help="Pause between two looks at loads.")] = DEFAULTS.poll_s,
    history: Annotated[
        bool,
        typer.Option("--transfer-history/--recompute-history", help="How prefill workers get a session's history."),
    ] = DEFAULTS.transfer_history,
) -> None:
    """Serve the OpenAI API over SGLang servers, each request where the router plugin of a config places it."""
    settings = GatewaySettings(
        timeout_s=timeout_s,
        first_token_s=first_token_s,
        silence_s=silence_s,
        retries=retries,
        poll_s=poll_s,
        transfer_history=history,
    )
    run(configs.load(configs.find(config)), worker, settings, host, port)


def run(config: Config, workers: list[str], settings: GatewaySettings, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    import uvloop  # noqa: PLC0415 - only this command needs it

    from pdplugins.hosts.sglang.gateway.app import Gateway  # noqa: PLC0415 - aiohttp takes a while to import
    from pdplugins.hosts.sglang.gateway.fleet import WorkerOption  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    options = [WorkerOption.parse(text) for text in workers]

    async def serve() -> None:
        gateway = Gateway(config, options, settings)
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await gateway.start(host, port)
        router = config.router.name if config.router else "least-loaded"
        typer.echo(f"gateway on {gateway.url}, router {router}, {len(options)} workers: {gateway.url}/workers")
        await stopped.wait()
        await gateway.stop()

    uvloop.run(serve())
