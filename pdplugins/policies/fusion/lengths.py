"""Mean lengths of prompts and outputs, over recent requests."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from pdplugins.contracts.request import Request

MOST_OPEN = 2**16
"""Requests that are remembered."""
FADE = 0.005
"""Weight of one prompt in the means; more at first, so that all prompts so far weigh the same."""
PRIOR = 4
"""Answers that the prior counts for, in the mean of logarithms."""
EARLY = 8
"""Answers that must have ended before they count more than the prior."""
FAR = 2.0
"""What is decoded counts before answers have ended where it shows that these are so many times as long as the prior."""
MOST_GAP_S = 5.0
"""Between two reports of how fast workers decode; nobody knows what they did in a longer one."""
RECENT = 512
"""Answers of which the mean is taken."""
OFTEN = 16
"""The mean is computed anew when this part of the requests in it has ended since."""
MOST_SPREAD = 4.0
"""Few prompts say little about a larger one."""
MOST_DECODING = 4.0
"""Few answers say little about a larger ratio of contexts."""
MOST_TOKENS = 10**9
"""A longer prompt or answer is none."""
GOES_ON = -1
"""In place of an output."""
LATELY, LATELY_S = 512, 60.0
"""Prompts, and seconds, over which the rate of requests is taken: the shorter of the two."""
LEAST_S, SHORTEST_S = 1.0, 1e-3
"""Seconds over which it is taken at least: that of fewer prompts, which may be one burst, and that of all."""


class MeanLengths:
    """Short answers end first, so the mean of those that have ended says too little while traffic is new or changes.

    So the mean is that of Kaplan and Meier (1958) over the requests that have begun lately: one that goes on says that
    its answer is longer than what it has now. Hosts do not say how long that is. It follows from its time and from the
    TPOT of others. What is beyond the longest answer so far is taken to be no longer than that, or than the prior.
    """

    def __init__(self, prior_tokens: int) -> None:
        self.isl: float | None = None
        """Prompt tokens that must be computed; None while nothing came."""
        self.history = 0.0
        """Prompt tokens that are in a KV cache already: of earlier rounds, or of other requests."""
        self.osl = self._prior = float(prior_tokens)
        self._lately: deque[tuple[float, int]] = deque(maxlen=LATELY)
        """When requests went on, and the tokens of their prompts that had to be computed."""
        self._prompts = 0
        self.news = 0
        """How many requests have begun and ended."""
        self._square = 0.0
        self._open: OrderedDict[str, None] = OrderedDict()
        """Requests that have gone on and not ended."""
        self._recent: OrderedDict[str, Recent] = OrderedDict()
        """In the order in which they went on."""
        self._ended = self._since = 0
        """How many of them have ended, and how many since the mean was computed."""
        self.short = self._prior
        """Harmonic mean of the outputs: where many are short it is far below the mean."""
        self.decoding = 1.0
        """Mean context of what decodes at one time, over that of a mean request: long answers decode for longer."""
        self._tpot_s = self._wait_s = 0.0
        """Mean TPOT, and mean time before the first token."""
        self._told = self._paced = 0
        self._heard_s: float | None = None
        """When it was last told how fast workers decode."""
        self._decoded = 0.0
        """Tokens that they have decoded until then."""

    def began(self, request: Request, now_s: float = 0.0, known: int = 0) -> None:
        """Learn the length of a prompt that goes on. A second call for the same request changes nothing.

        :param known: tokens of it that are in a KV cache, where that is more than its history.
        """
        if request.id in self._open:
            return
        self.news += 1
        tokens = float(max(request.prompt_tokens - max(request.history_tokens, known), 1))
        self._lately.append((now_s, int(tokens)))
        self._prompts += 1
        weight = _weight(self._prompts)
        self.isl = tokens if self.isl is None else self.isl + weight * (tokens - self.isl)
        self._square += weight * (tokens * tokens - self._square)
        self.history += weight * (request.prompt_tokens - tokens - self.history)
        self._open[request.id] = None
        if (last := self._recent.pop(request.id, None)) is not None:
            self._ended -= last.output >= 0
        self._recent[request.id] = Recent(now_s, min(request.prompt_tokens, MOST_TOKENS), GOES_ON)
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        if len(self._recent) > MOST_OPEN:
            self._forget()

    @property
    def spread(self) -> float:
        """Mean square of the prompts over the square of their mean."""
        return min(self._square / self.isl**2, MOST_SPREAD) if self.isl else 1.0

    @property
    def answered(self) -> int:
        """How often the number of answers has become four times as large: then their mean is twice as exact."""
        return self._ended.bit_length() // 2 if self._ended >= EARLY else 0

    @property
    def answers(self) -> int:
        """Number of answers that the mean is taken of."""
        return self._ended

    def lately(self, now_s: float) -> tuple[float, Sequence[int]]:
        """Return the requests a second that went on lately, 0 for few, and the tokens that they had to compute."""
        begun_s = [at_s for at_s, _ in self._lately if at_s > now_s - LATELY_S]
        least_s = LEAST_S if len(begun_s) < LATELY else SHORTEST_S
        rate = len(begun_s) / max(now_s - begun_s[0], least_s) if len(begun_s) > EARLY else 0.0
        return rate, [tokens for _, tokens in self._lately]

    def knows(self, request: Request) -> bool:
        """Tell whether a request has gone on, and not ended."""
        return request.id in self._open

    def ended(
        self, request: Request, output_tokens: int | None, tpot_s: float | None = None, now_s: float = 0.0
    ) -> None:
        """Learn the length of an output; None for a request that did not finish.

        :param tpot_s: its time per output token, where the host saw that.
        """
        if request.id not in self._open:
            return
        self.news += 1
        del self._open[request.id]
        if (found := self._recent.get(request.id)) is None:
            return
        if output_tokens is None:
            del self._recent[request.id]
            return
        tokens = min(max(output_tokens, 0), MOST_TOKENS)
        self._recent[request.id] = found._replace(output=tokens)
        self._ended += 1
        self._since += 1
        self._told += 1
        self.short = 1 / (1 / self.short + _weight(self._told + PRIOR) * (1 / max(tokens, 1) - 1 / self.short))
        if tpot_s is not None and 0 < tpot_s < math.inf:
            self._paced += 1
            weight = _weight(self._paced)
            wait_s = max(now_s - found.begun_s - tpot_s * tokens, 0.0)
            self._tpot_s += weight * (tpot_s - self._tpot_s)
            self._wait_s += weight * (wait_s - self._wait_s)
        while self._ended > RECENT:
            self._forget()
        if self._ended >= EARLY and self._since * OFTEN >= len(self._recent):
            self._since = 0
            trust = self._ended / (self._ended + PRIOR)
            self.osl = max(self._mean(now_s), 1.0) ** trust * self._prior ** (1 - trust)

    def decoded(self, decodes: int, tokens_per_s: float, now_s: float) -> None:
        """Take in what all workers decode, while too few answers have ended to tell more than the prior.

        What was decoded so far for each request that has gone on is less than a mean answer, whether a host tells of
        ends or not: those that decode have about half of theirs. A little more than the prior says nothing, as some
        answers are longer than others.

        :param decodes: requests that decode now.
        """
        if self._ended >= EARLY:
            return
        since_s, self._heard_s = self._heard_s, now_s
        if since_s is None or not self._prompts:
            return
        self._decoded += tokens_per_s * min(max(now_s - since_s, 0.0), MOST_GAP_S)
        tokens = self._decoded / self._prompts * (1 + min(decodes / self._prompts, 1.0))
        if tokens > FAR * self._prior:
            self.osl = max(self.osl, min(tokens, MOST_TOKENS))

    def _forget(self) -> None:
        _, forgotten = self._recent.popitem(last=False)
        self._ended -= forgotten.output >= 0

    def _mean(self, now_s: float) -> float:
        """Return the mean output, and take in the mean context while it decodes."""
        tokens_by_now = 1 / self._tpot_s if self._tpot_s else 0.0
        lengths = sorted(
            (float(output), 0, prompt)
            if output >= 0
            else (max((now_s - begun_s - self._wait_s) * tokens_by_now, 0.0), 1, prompt)
            for begun_s, prompt, output in self._recent.values()
        )
        left, share, mean, before, seen = len(lengths), 1.0, 0.0, 0.0, 0.0
        ended = Contexts()
        for tokens, goes_on, prompt in lengths:
            mean += share * (tokens - before)
            before = tokens
            seen += tokens
            if not goes_on:
                ended.add(share / left, prompt, tokens)
                share *= 1 - 1 / left
            left -= 1
        self.decoding = ended.decoding
        return mean + share * min(seen / self._ended, max(self._prior - before, before))


class Recent(NamedTuple):
    """A request that has gone on lately."""

    begun_s: float
    prompt: int
    output: int
    """GOES_ON until it has ended."""


class Contexts:
    """Mean context of a request, and of what decodes at one time: there each counts as long as it decodes."""

    def __init__(self) -> None:
        self._share = self._context = self._tokens = self._weighted = 0.0

    def add(self, share: float, prompt: int, output: float) -> None:
        """Take in a request that stands for this share of all."""
        context = prompt + output / 2
        self._share += share
        self._context += share * context
        self._tokens += share * output
        self._weighted += share * output * context

    @property
    def decoding(self) -> float:
        """The second over the first."""
        if not self._context or not self._tokens:
            return 1.0
        ratio = self._weighted * self._share / (self._tokens * self._context)
        return min(max(ratio, 1 / MOST_DECODING), MOST_DECODING)


def _weight(number: int) -> float:
    return max(1 / number, FADE)
