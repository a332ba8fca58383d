"""How long a prompt is, and the prefix blocks that it has in common with others."""

from __future__ import annotations

from pdplugins.gateway.books import BLOCK_TOKENS
from pdplugins.gateway.engine import Call

CHARS_PER_TOKEN = 4
"""Length of a token of text, to cut text into blocks and until answers have told better."""
LEAST_CHARS, MOST_CHARS = 0.2, 8.0
"""No text has shorter or longer ones in the mean. A body with an image in it has many more characters than tokens."""


class Lengths:
    """Prompt lengths in tokens: exact for token ids; for text by the characters per token that answers have shown."""

    def __init__(self) -> None:
        self._chars_per_token = float(CHARS_PER_TOKEN)

    def prompt_tokens(self, call: Call) -> int:
        """Return the length of the prompt, or of all prompts of a batch."""
        prompt = call.prompt
        if isinstance(prompt, list):
            return len(prompt)
        return max(round(_chars(call) / self._chars_per_token), 1)

    def learn(self, call: Call, prompt_tokens: int) -> None:
        """Take in what a worker said of the length of the prompt of `call`."""
        if not isinstance(call.prompt, list) and call.batch is None and prompt_tokens > 0 and (chars := _chars(call)):
            seen = min(max(chars / prompt_tokens, LEAST_CHARS), MOST_CHARS)
            self._chars_per_token += 0.1 * (seen - self._chars_per_token)


def _chars(call: Call) -> int:
    prompt = call.prompt
    return len(prompt) if isinstance(prompt, str) else len(call.body)


def blocks_of(call: Call) -> tuple[int, ...]:
    """Return the hashes of the whole blocks of the prompt; each one stands for all of the prompt up to its end."""
    prompt: list[int] | str | bytes = call.messages if call.prompt is None else call.prompt
    size = BLOCK_TOKENS if isinstance(prompt, list) else BLOCK_TOKENS * CHARS_PER_TOKEN
    hashes: list[int] = []
    before = 0
    for end in range(size, len(prompt) + 1, size):
        part = prompt[end - size : end]
        before = hash((before, tuple(part) if isinstance(part, list) else part))
        hashes.append(before)
    return tuple(hashes)
