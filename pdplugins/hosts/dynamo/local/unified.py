"""The process of a worker that does both phases: two of Dynamo's mocker engines under one instance id.

A mocker engine prefills or decodes, and not both. So this worker has one of each, with a KV cache each, and both may
step at the same time: it is faster than one GPU that does both. Its role says which of its two endpoints the planner
counts; the router uses both.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pdplugins.contracts.workers import Role
from pdplugins.hosts.dynamo.router.places import Place, first, other
from pdplugins.hosts.dynamo.runtime import make_runtime, namespace
from pdplugins.processes.process import python
from pdplugins.runtime.roles import OTHER


def unified_command(role: Role, model: Iterable[str], engine_args: Mapping[Role, Path], delay_s: float) -> list[str]:
    """Return the command of such a worker.

    :param model: the options that name the model.
    :param engine_args: arguments of the engine of each phase, a JSON file.
    """
    files = [part for phase, path in engine_args.items() for part in (f"--{phase}-args", str(path))]
    return python("pdplugins.hosts.dynamo.local.unified", "--role", role.value, *model, *files, delay_s=delay_s)


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="pdplugins.hosts.dynamo.local.unified", description=__doc__)
    parser.add_argument("--role", type=Role, required=True, help="what it is counted as")
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--model-name", required=True)
    for role in Role:
        parser.add_argument(f"--{role}-args", type=Path, required=True, help="arguments of its engine, a JSON file")
    return parser.parse_args()


async def engine(runtime: Any, given: argparse.Namespace, place: Place) -> Any:
    """Start the engine for one phase, and return what serves it."""
    from dynamo.llm import EngineType, EntrypointArgs, make_engine, run_input  # noqa: PLC0415 - brings Dynamo in
    from dynamo.mocker import MockEngineArgs  # noqa: PLC0415
    from dynamo.mocker.config import build_runtime_config  # noqa: PLC0415

    files: dict[Role, Path] = {Role.PREFILL: given.prefill_args, Role.DECODE: given.decode_args}
    arguments = MockEngineArgs.from_json(files[place.phase].read_text(encoding="utf-8"))
    endpoint = f"dyn://{place.path}"
    block_size, runtime_config = build_runtime_config(arguments)
    entrypoint = EntrypointArgs(
        engine_type=EngineType.Mocker,
        model_path=given.model_path,
        model_name=given.model_name,
        endpoint_id=endpoint,
        mocker_engine_args=arguments,
        runtime_config=runtime_config,
        kv_cache_block_size=block_size,
        is_prefill=place.phase is Role.PREFILL,
        is_decode=place.phase is Role.DECODE,
    )
    return run_input(runtime, endpoint, await make_engine(runtime, entrypoint))


async def serve(given: argparse.Namespace) -> None:
    """Serve both phases until SIGTERM; then finish what is in flight."""
    loop = asyncio.get_running_loop()
    runtime = make_runtime()
    engines = [
        await engine(runtime, given, first(given.role, namespace())),
        await engine(runtime, given, other(OTHER[given.role], namespace())),
    ]
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runtime.shutdown)
    await asyncio.gather(*engines, return_exceptions=True)


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(options()))
