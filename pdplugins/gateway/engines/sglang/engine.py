"""SGLang's servers as an `Engine` of the gateway."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import aiohttp

from pdplugins.gateway.backends import Backend
from pdplugins.gateway.engine import Client, Facts, LoadReport, Work
from pdplugins.gateway.engines.sglang import calls, protocol
from pdplugins.gateway.engines.sglang.calls import Call
from pdplugins.gateway.engines.sglang.completions import CompletionsReply
from pdplugins.gateway.engines.sglang.fields import Fields
from pdplugins.gateway.engines.sglang.legs import Legs, silence
from pdplugins.gateway.engines.sglang.public import model_of, public
from pdplugins.gateway.engines.sglang.relay import Relay
from pdplugins.gateway.engines.sglang.reports import facts_of, report_of, texts_of, tokens_of
from pdplugins.gateway.engines.sglang.upstream import Answer, Upstream
from pdplugins.gateway.errors import RefusedError, ShortageError, WorkerFailedError
from pdplugins.gateway.reading import read_whole
from pdplugins.limits import GatewayConfig

TEMPLATE_FIELDS = ("model", "messages", "tools", "tool_choice", "chat_template_kwargs", "continue_final_message")
REPORT_BYTES = 4 * 2**20
"""Longest answer to a question about a server itself."""
TEXTS_S = 3.0
"""So long an answer waits for the text between two workers; without it a character may be lost."""


class SglangEngine:
    """The servers of one gateway. Build it on the event loop.

    :param dual: decode servers run pdplugins' dual-role instance (``sglang.dual_role`` of the config).
    :param session: what asks servers for what they are and for their load.
    :param tls: what checks servers' certificates.
    """

    paths = (protocol.GENERATE, protocol.COMPLETIONS, protocol.CHAT)
    models = "/v1/models"
    passed_gets = (models, "/model_info", "/get_model_info", protocol.SERVER_INFO, "/get_server_info")
    passed_posts = (protocol.TOKENIZE, "/tokenize", protocol.DETOKENIZE, "/detokenize")

    def __init__(
        self, settings: GatewayConfig, session: aiohttp.ClientSession, *, dual: bool, tls: ssl.SSLContext
    ) -> None:
        self.upstream = Upstream(settings, tls)
        self.room = self.upstream.room
        self._legs = Legs(self.upstream, settings)
        self._session = session
        self._settings = settings
        self._dual = dual

    # --- what a server is, and its load --------------------------------------------------------------------------

    async def describe(self, backend: Backend) -> Facts:
        """Ask a server what it is."""
        return facts_of(await self._get(backend, protocol.SERVER_INFO), dual=self._dual)

    async def load(self, backend: Backend) -> LoadReport:
        """Ask a server for its load."""
        return report_of(await self._get(backend, protocol.LOADS + "?include=core"))

    async def _get(self, backend: Backend, path: str) -> bytes:
        async with self._session.get(
            backend.url + path, headers=backend.key.headers, raise_for_status=True, allow_redirects=False
        ) as answer:
            return await read_whole(answer.content.readany, REPORT_BYTES)

    def public(self, path: str, body: bytes) -> bytes:
        """Return what of a server's answer to a question that any server may answer is for clients."""
        return public(path, body)

    def model_of(self, listed: bytes, name: str) -> bytes | None:
        """Return what a list of models says of one of them; None when it is not there."""
        return model_of(listed, name)

    # --- requests and answers ------------------------------------------------------------------------------------

    def parse(self, path: str, body: bytes, rid: str, session: str | None, headers: Mapping[str, str]) -> Call:
        """Parse a request. Raises GatewayError for what is not a JSON object."""
        return calls.parse(path, body, rid, session, headers, self._settings)

    async def prompt_ids(self, backend: Backend, call: Call) -> list[int]:
        """Return the prompt of `call` as the server's tokenizer, and its chat template, split it."""
        question: dict[str, Any] = {"prompt": call.prompt}
        if call.path == protocol.CHAT:
            assert isinstance(call.fields, Fields)  # noqa: S101 - only a client's own request is a chat
            question = {key: raw for key in TEMPLATE_FIELDS if (raw := call.fields.raw(key)) is not None}
        try:
            with backend.waits.within(self._settings.first_token_s):
                said = await self.upstream.ask(backend, protocol.TOKENIZE, question)
        except TimeoutError:
            raise silence(backend, "token ids", self._settings.first_token_s) from None
        try:
            return tokens_of(said)
        except ValueError as error:
            raise WorkerFailedError(backend.id, f"{protocol.TOKENIZE}: {error}") from None

    def relay(self, call: Call, client: Client, on_tokens: Callable[[int], None]) -> Relay:
        """Return the relay that passes the answer of `call` on."""
        form = client.incremental if isinstance(client, CompletionsReply) else None
        return Relay(call, client, on_tokens, partial(self._texts, call), incremental=form)

    async def _texts(self, call: Call, backend: Backend, ids: Sequence[Sequence[int]]) -> list[str] | None:
        """Return the text of each list of token ids, as the server makes it for `call`; None where it does not tell."""
        question: dict[str, Any] = {"tokens": ids}
        if isinstance(skips := call.sampling.get("skip_special_tokens"), bool):
            question["skip_special_tokens"] = skips
        try:
            async with asyncio.timeout(TEXTS_S):
                return texts_of(await self.upstream.ask(backend, protocol.DETOKENIZE, question), len(ids))
        except (WorkerFailedError, RefusedError, ShortageError, TimeoutError, ValueError):
            return None

    def splittable(self, call: Call, client: Client, first: Backend) -> tuple[Call, Client]:
        """Return a plain completion as a request to ``/generate``, whose answers tell token ids; others unchanged."""
        generate = call.as_generate()
        if generate is None:
            return call, client
        return generate, CompletionsReply(client, call, incremental=first.incremental)

    # --- legs ----------------------------------------------------------------------------------------------------

    def local(self, backend: Backend, work: Work[Call]) -> AbstractAsyncContextManager[Answer]:
        """Let one server do all of it."""
        return self._legs.local(backend, work)

    def pair(self, prefill: Backend, decode: Backend, work: Work[Call]) -> AbstractAsyncContextManager[Answer]:
        """Prefill on one server and decode on another one, which gets the KV cache."""
        return self._legs.pair(prefill, decode, work)

    async def push(self, source: Backend, target: Backend, ids: Sequence[int], work: Work[Call]) -> None:
        """Compute the KV cache of `ids` on `source` and leave it in the prefix cache of `target`."""
        await self._legs.push(source, target, ids, work)

    async def warm(self, backend: Backend, work: Work[Call]) -> None:
        """Compute the KV cache of a prompt on a server, for a later pair or for itself."""
        await self._legs.warm(backend, work)

    def forget(self, backend: Backend) -> None:
        """Let go of the connections to a server."""
        self.upstream.forget(backend)

    async def close(self, within_s: float) -> None:
        """Wait so long for background work, then end it, and close all connections."""
        await self.upstream.settle(within_s)
