"""The cap transaction: caps change without their sum ever passing the budget.

Caps that fall are set at once. A cap rises only when the watts for it are free: when the devices that were lowered have
been seen to draw no more than their new caps. The transaction does no I/O and reads no clock. A host tells it what it
writes, what came of that and what it sees, so the simulator and real devices run the same object.

Of each device it keeps the most that it may draw now: whatever is not known counts at its worst. A write that is under
way, failed or never came back counts as both caps, the old one and the new one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

ROUNDING = 1e-9
"""Share of the budget that rounding of sums may add."""


class Account:
    """The watts of one device."""

    __slots__ = ("kept_w", "known", "lost", "standing_w", "target_w", "told_w", "writing_w")

    def __init__(self, cap_w: float, kept_w: float) -> None:
        self.told_w = cap_w
        """The cap in force, as far as is known."""
        self.kept_w = max(kept_w, cap_w)
        """The most that it may draw now. A lower cap counts once the draw obeys it, a higher one before it is set."""
        self.target_w = cap_w
        """The cap that is wanted."""
        self.standing_w = cap_w
        """The cap to go back to when the change fails."""
        self.writing_w: float | None = None
        """The cap of a write that is under way; None without one."""
        self.known = True
        """Whether `told_w` is in force. Not after a write that failed, until the device has told its cap."""
        self.lost = False
        """Whether it answers no more."""


class CapTransaction(Generic[Key]):
    """The caps of the devices of one node, and how they change.

    :param budget_w: what all devices may draw together. When None, caps rise only after every one that was lowered has
        settled; so the devices never draw more than the larger of two plans, the old one and the new one, allows.
    :param grain_w: caps that differ by no more are the same: devices round them.
    """

    def __init__(self, budget_w: float | None = None, grain_w: float = 0.0) -> None:
        self.budget_w = budget_w
        self.accounts: dict[Key, Account] = {}
        self._grain_w = grain_w

    def open(self, key: Key, cap_w: float, kept_w: float = 0.0) -> None:
        """Take in a device.

        :param kept_w: the most that it may draw now, where that is more than `cap_w`.
        """
        self.accounts[key] = Account(cap_w, kept_w)

    def close(self, key: Key) -> None:
        """Forget a device that draws nothing any more."""
        self.accounts.pop(key, None)

    @property
    def kept_w(self) -> float:
        """The most that all devices may draw now."""
        return math.fsum(account.kept_w for account in self.accounts.values())

    def settled(self, key: Key) -> bool:
        """Tell whether nothing of one device is under way: it was seen to obey the cap in force."""
        account = self.accounts[key]
        return self._still(account) and account.kept_w <= account.told_w + self._grain_w

    @property
    def complete(self) -> bool:
        """Whether every device has the cap that is wanted, and obeys it."""
        return all(self.settled(key) and not self._differs(one) for key, one in self.accounts.items())

    # --- what is wanted ---------------------------------------------------------------------------------------------

    def aim(self, caps_w: Mapping[Key, float]) -> None:
        """Want these caps from now on."""
        self._stand()
        for key, cap_w in caps_w.items():
            self.accounts[key].target_w = cap_w

    def _stand(self) -> None:
        """Note the caps that all devices have and obey: those are the ones to go back to.

        A device that is lost has no say in that: else the others would go back to their caps from before the loss.
        """
        there = {key: one for key, one in self.accounts.items() if not one.lost}
        if all(self.settled(key) and not self._differs(one) for key, one in there.items()):
            for account in there.values():
                account.standing_w = account.told_w

    def roll_back(self) -> None:
        """Want the caps again that all devices had before the change, as far as the budget has the watts for them."""
        for account in self.accounts.values():
            account.target_w = account.standing_w

    def due(self) -> list[tuple[Key, float]]:
        """Return the writes to begin now, those that lower caps first."""
        waiting = [(key, one) for key, one in self.accounts.items() if self._still(one) and self._differs(one)]
        lower = [(key, one.target_w) for key, one in waiting if one.target_w < one.told_w]
        if lower and self.budget_w is None:
            return lower
        return lower + self._rises([(key, one) for key, one in waiting if one.target_w > one.told_w])

    def _rises(self, waiting: list[tuple[Key, Account]]) -> list[tuple[Key, float]]:
        """Return the caps that may rise now: all once all has settled, or those that the budget has watts for."""
        if self.budget_w is None:
            settled = all(map(self.settled, self.accounts))
            return [(key, one.target_w) for key, one in waiting] if settled else []
        rises, total_w = [], self.kept_w
        for key, one in waiting:
            more_w = max(one.target_w - one.kept_w, 0.0)
            if total_w + more_w <= self.budget_w * (1 + ROUNDING):
                total_w += more_w
                rises.append((key, one.target_w))
        return rises

    @staticmethod
    def _still(account: Account) -> bool:
        return account.known and account.writing_w is None

    def _differs(self, account: Account) -> bool:
        return abs(account.target_w - account.told_w) > self._grain_w

    # --- what happens -----------------------------------------------------------------------------------------------

    def writes(self, key: Key, cap_w: float) -> None:
        """A write begins: from now on either cap may be in force."""
        account = self.accounts[key]
        account.writing_w = cap_w
        account.kept_w = max(account.kept_w, cap_w)

    def failed(self, key: Key) -> None:
        """A write failed: either cap may be in force. Nothing is written until the device `has` one."""
        account = self.accounts[key]
        account.writing_w, account.known = None, False

    def lost(self, key: Key, most_w: float) -> None:
        """A device answers no more: it may have any cap up to `most_w`. Nothing is written until it `has` one."""
        account = self.accounts[key]
        account.known, account.lost = False, True
        account.kept_w = max(account.kept_w, most_w)

    def has(self, key: Key, cap_w: float) -> None:
        """The device was seen to have this cap, after a write or because somebody else has set it."""
        account = self.accounts[key]
        account.writing_w, account.known, account.lost = None, True, False
        account.told_w = cap_w
        if account.kept_w <= cap_w + self._grain_w:
            account.kept_w = cap_w

    def draws(self, key: Key, draw_w: float) -> None:
        """The device was seen to draw more than its cap, though it had obeyed it."""
        account = self.accounts[key]
        account.kept_w = max(account.kept_w, draw_w)

    def obeys(self, key: Key) -> None:
        """The device was seen to draw no more than the cap in force, long enough after it was set."""
        account = self.accounts[key]
        if self._still(account):
            account.kept_w = account.told_w
            self._stand()
