"""The OpenAPI document of a gateway: what ``openapi.json`` says of the paths that it really serves."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from aiohttp import web

PATH = "/openapi.json"


def routes(app: web.Application) -> set[tuple[str, str]]:
    """Return the paths and methods (lower case) that an application serves, but for those that only refuse."""
    found = [(route.resource, route.method.lower()) for route in app.router.routes()]
    return {(resource.canonical, method) for resource, method in found if resource and method not in ("*", "head")}


def document(app: web.Application) -> bytes:
    """Return the document of the paths that `app` serves. Raises KeyError for one of which nothing is written."""
    written: dict[str, Any] = json.loads(files("pdplugins.gateway").joinpath("openapi.json").read_bytes())
    paths = written["paths"]
    served: dict[str, Any] = {}
    for path, method in sorted(routes(app)):
        served.setdefault(path, {})[method] = paths[path][method]
    return json.dumps(written | {"paths": served}).encode()
