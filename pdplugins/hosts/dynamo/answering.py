"""Whether Dynamo's frontend would answer a request."""

from __future__ import annotations

from pdplugins.hosts.dynamo.fetching import PageError, fetch

ROUTES = ("/v1/chat/completions", "/v1/completions")


def answers(url: str, model: str) -> bool:
    """Return whether a request to the frontend at `url` for `model` would be answered. Raises OSError for a bad page.

    The frontend lists a model a moment before it opens the routes of its requests; until then these answer 404.
    """
    return model in fetch(f"{url}/v1/models") and all(_open(url + route) for route in ROUTES)


def _open(url: str) -> bool:
    """Ask without a request: an open route answers 405, and the frontend counts nothing."""
    try:
        fetch(url)
    except PageError as error:
        return error.status == 405
    return True
