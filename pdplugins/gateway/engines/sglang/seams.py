"""The text of an answer where one worker goes on after another, perhaps inside a character of several tokens.

Each worker turns tokens into text by itself, and takes the tokens of the workers before for its prompt. The first bytes
of a character end the text of the worker before as "\\ufffd". The next worker cuts the whole character off: it cuts off
as many characters as the text of its prompt has. So its detokenizer is asked what that was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate

BROKEN = "\ufffd"
"""What the beginning of a character is as text."""
CONTEXT_TOKENS = 5
"""Tokens of its prompt with which SGLang turns new tokens into text."""
MOST_TOKENS = 8
"""Tokens after which every character has ended; most have four at the most."""

Texts = Callable[[Sequence[Sequence[int]]], Awaitable[list[str] | None]]
"""Returns the text of each list of token ids; None where nobody can tell."""


class Seam:
    """The text between what workers have said and what the next one says.

    :param ids: all tokens so far.
    :param text: their text, but for "\\ufffd" at its end: the next tokens may tell what that is.
    :param broken: how many of these there were; None where the worker broke off, and maybe held more text back.
    """

    def __init__(self, ids: Sequence[int], text: str, broken: int | None) -> None:
        self._ids = ids
        self._text = text
        self._broken = broken

    async def close(self, new: Sequence[int], texts: Texts, *, last: bool) -> str | None:
        """Return the text; None while the next tokens must tell it.

        :param new: the tokens of the next worker so far.
        :param last: there will be no more of them.
        """
        if not (new or last):
            return None
        context = list(self._ids[-CONTEXT_TOKENS:])
        longer = accumulate(new[:MOST_TOKENS], lambda ids, token: [*ids, token], initial=context)
        whole = [] if self._broken is not None else [list(self._ids)]
        said = await texts([*longer, *whole])
        held, broken = self._held(said[-1] if said and whole else None)
        if said is None or not broken:
            return held + BROKEN * broken
        cut, *reads = said[: len(said) - len(whole)]
        read = next((text for text in reads if len(text) >= len(cut) and not text.endswith(BROKEN)), None)
        if read is None and not last and len(new) < MOST_TOKENS:
            return None
        return held + (read or said[len(reads)])[len(cut) - broken : len(cut)]

    def _held(self, whole: str | None) -> tuple[str, int]:
        """Return what the workers before have held back, and how many "\\ufffd" end their text.

        :param whole: the text of all their tokens, which may lack the space at its beginning.
        """
        if whole is None:
            return "", self._broken or 0
        for text in (whole, f" {whole}"):
            if text.startswith(self._text):
                held = text[len(self._text) :]
                shown = held.rstrip(BROKEN)
                return shown, len(held) - len(shown)
        return "", 0
