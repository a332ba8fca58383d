"""Range queries to a Prometheus server, within limits: it may be slow, huge, hostile, or no Prometheus at all."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from pdplugins.errors import ConfigError, HostError, one_line
from pdplugins.processes.addresses import check_url, is_loopback
from pdplugins.processes.keys import read_secret

TOKEN_VARIABLE = "PDPLUGINS_PROMETHEUS_TOKEN"  # noqa: S105 - the name of a variable
MOST_STEPS = 2_000
"""Points in time of one query; Prometheus itself refuses more than 11,000."""
MOST_BYTES = 2**26
"""Size of the largest answer."""
MOST_SERIES = 1_000
TIMEOUT_S = 30.0
"""For each query as a whole, from the connection to the last byte."""

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a range query; values that are not finite are left out."""

    labels: Labels
    points: tuple[tuple[float, float], ...]
    """(Unix time, value), ascending."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of time in equal steps."""

    start_s: float
    """Unix time."""
    end_s: float
    step_s: float

    @property
    def steps(self) -> int:
        """Return the number of whole steps."""
        return int((self.end_s - self.start_s) / self.step_s + 1e-9)


class Prometheus:
    """A server, and how to reach it. It is reached directly: no proxy of the environment, no redirect, no cookie.

    :param token_file: of a bearer token; else the environment variable `TOKEN_VARIABLE`, if it is set.
    :param authorities: certificates in PEM that are trusted besides the system's.
    :param timeout_s: for each query.

    Raises ConfigError.
    """

    def __init__(
        self, url: str, *, token_file: Path | None = None, authorities: Path | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        parts = check_url(url, "--prometheus")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._tls = _tls(authorities)
        token = read_secret(token_file, "--token-file", TOKEN_VARIABLE)
        if token is not None and parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ConfigError(f"--prometheus {self.url}: a token is sent over https only; give an https URL")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def ask(
        self, queries: Mapping[str, str], span: Span, done: Callable[[float], None] = lambda _: None
    ) -> dict[str, list[Series]]:
        """Return the series of each query at the end of each step of `span`. Raises HostError.

        :param done: called with the share of the queries that are answered.
        """
        return asyncio.run(self._all(queries, span, done))

    async def _all(
        self, queries: Mapping[str, str], span: Span, done: Callable[[float], None]
    ) -> dict[str, list[Series]]:
        found: dict[str, list[Series]] = {}
        connector = aiohttp.TCPConnector(ssl=self._tls)
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(connector=connector, cookie_jar=jar, headers=self._headers) as session:
            for name, query in queries.items():
                found[name] = await self._one(session, query, span)
                done(len(found) / len(queries))
        return found

    async def _one(self, session: aiohttp.ClientSession, query: str, span: Span) -> list[Series]:
        first_s = span.start_s + span.step_s
        asked = {
            "query": query,
            "start": f"{first_s:.3f}",
            "end": f"{first_s + (span.steps - 1) * span.step_s:.3f}",
            "step": f"{span.step_s:.3f}",
            "timeout": f"{self._timeout_s:g}s",
        }
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                session.get(f"{self.url}/api/v1/query_range", params=asked, allow_redirects=False) as answer,
            ):
                return _series(_parsed(await _body(answer), answer.status))
        except TimeoutError:
            why = f"no whole answer within {self._timeout_s:g} s; ask for less time, or longer steps"
            raise self._error(why) from None
        except ValueError as error:
            raise self._error(one_line(error)) from None
        except (OSError, aiohttp.ClientError) as error:
            raise self._error(f"{one_line(error)}; does it run there, and is this its URL?") from None

    def _error(self, why: str) -> HostError:
        return HostError(f"--prometheus {self.url}: {why}")


def _tls(authorities: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if authorities is not None:
        try:
            context.load_verify_locations(authorities)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"--ca {authorities}: {one_line(error)}; give certificates in PEM") from None
    return context


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """Return what was answered. Raises ValueError where that is too much, or leads elsewhere."""
    if 300 <= answer.status < 400:
        where = one_line(answer.headers.get("Location", "somewhere"), 100)
        raise ValueError(f"it redirects to {where}; give that URL, if you trust it")
    parts, size = [], 0
    async for part in answer.content.iter_chunked(2**16):
        parts.append(part)
        if (size := size + len(part)) > MOST_BYTES:
            raise ValueError(f"an answer is larger than {MOST_BYTES // 2**20} MiB; ask for less time, or longer steps")
    return b"".join(parts)


def _parsed(body: bytes, status: int) -> Any:
    """Return the data of an answer. Raises ValueError with what the server says is wrong."""
    if status in (401, 403):
        raise ValueError(f"status {status}; give a token by --token-file, or in {TOKEN_VARIABLE}")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
        raise ValueError(f"it answers as no Prometheus does (status {status}); give the URL above its /api/v1")
    if answer["status"] == "error":
        raise ValueError(f"it refuses the query: {one_line(answer.get('error', status))}")
    return answer.get("data")


def _series(data: Any) -> list[Series]:
    """Read a matrix. Raises ValueError for anything else."""
    try:
        rows = data["result"]
        if data["resultType"] != "matrix" or len(rows) > MOST_SERIES:
            raise ValueError(f"{data['resultType']} of {len(rows)}; at most {MOST_SERIES} series are read")
        return [
            Series({str(k): str(v) for k, v in row["metric"].items()}, tuple(_points(row["values"]))) for row in rows
        ]
    except (AttributeError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(f"it answers with something else than series ({one_line(error, 80)})") from None


def _points(values: Any) -> list[tuple[float, float]]:
    points = ((float(at_s), float(value)) for at_s, value in values)
    return [point for point in points if all(map(math.isfinite, point))]
