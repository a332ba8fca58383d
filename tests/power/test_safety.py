"""No interleaving of failures, delays, kills and second controllers lets the caps pass the budget.

Each run is a random story on two to four GPUs, in virtual time: the node's loop, the transaction and the saved caps are
the real ones, over the real nvidia-ml-py and the stand-in library in this process. Judged is the library's own trace of
every write. Only the threads are left out: a call comes back when the story says so, and takes effect before or after.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from benchmarks.rig.gpus.nodes import Node, Standin
from pdplugins.errors import ConfigError, HostError
from pdplugins.power.calls import Call
from pdplugins.power.node import GRAIN_W, Patience, PowerNode
from pdplugins.power.nvml import NvmlBackend
from pdplugins.power.saved import SavedCaps

T = TypeVar("T")

TICK_S = 0.1
PATIENCE = Patience(settle_s=0.3, obey_s=1.0, rest_s=0.5, call_s=0.3, poll_s=0.1)
TAU_S = 0.04
LOW_W, HIGH_W = 200.0, 700.0
FAULTS = (3, 4, 15, 16, 999)


@dataclass
class Pending:
    """A call that has not come back."""

    back_s: float
    early: bool
    """Takes effect when it begins."""
    work: Callable[[], None]


class Slow:
    """`Starts` in virtual time."""

    def __init__(self, story: random.Random, trouble: bool) -> None:
        self._story = story
        self.trouble = trouble
        self._pending: list[tuple[Pending, Call[Any]]] = []
        self.now_s = 0.0

    def __call__(self, uuid: str, work: Callable[[], T]) -> Call[T]:
        call: Call[T] = Call()

        def run() -> None:
            try:
                call.value = work()
            except Exception as error:
                call.error = error

        long = self.trouble and self._story.random() < 0.03
        pending = Pending(self.now_s + self._story.uniform(0, 3.0 if long else 0.05), self._story.random() < 0.5, run)
        if pending.early:
            run()
        self._pending.append((pending, call))
        return call

    def until(self, now_s: float) -> None:
        self.now_s = now_s
        for pending, call in [one for one in self._pending if one[0].back_s <= now_s]:
            if not pending.early:
                pending.work()
            call.done = True
            self._pending.remove((pending, call))

    def killed(self) -> None:
        """What had begun takes effect, or never does: the process is gone, and with it its lock, when that is over."""
        for pending, _ in self._pending:
            if not pending.early and self._story.random() < 0.5:
                pending.work()
        self._pending.clear()


class Story:
    """One random run."""

    def __init__(self, seed: int, node: Node, backend: NvmlBackend, folder: Path) -> None:
        self.random = story = random.Random(seed)
        self.node, self.backend, self.folder = node, backend, folder
        node.gpus = story.randint(2, 4)
        node.writes, node.clock_s, node.tau_s = 0, 0.0, TAU_S
        for gpu in node.gpu[: node.gpus]:
            gpu.limit_mw = int(1000 * story.uniform(LOW_W, HIGH_W))
            gpu.kept_w, gpu.since_s = gpu.limit_mw / 1e3, 0.0
            gpu.demand_w = story.choice([120.0, 500.0, 900.0])
            gpu.read_fault = gpu.write_fault = gpu.good_writes = gpu.deaf = 0
        self.before_w = node.limits_w()
        self.budget_w = story.uniform(node.gpus * LOW_W, node.gpus * HIGH_W)
        self.trouble = story.random() < 0.9
        self.now_s = 0.0
        self.ever_deaf = False
        self.gives_back_from: int | None = None
        self.begin()

    def begin(self) -> None:
        """A controller starts."""
        self.saved = SavedCaps(self.folder)
        self.starts = Slow(self.random, self.trouble)
        self.starts.now_s = self.now_s
        devices = self.backend.devices()
        self.it = PowerNode(self.backend, devices, self.budget_w, self.starts, saved=self.saved, patience=PATIENCE)
        self.uuids = [device.uuid for device in devices]

    def step(self) -> None:
        """Let a tenth of a second pass."""
        self.now_s += TICK_S
        self.node.clock_s = self.now_s
        self.starts.until(self.now_s)
        self.it.tick(self.now_s)
        if self.it.ready and not self.it.before_w:
            self.it.keep_before()

    def plan(self) -> None:
        """The policy wants other caps."""
        if not self.it.before_w:
            return
        weights = [self.random.random() for _ in self.uuids]
        free_w = self.budget_w - len(self.uuids) * LOW_W
        caps_w = [min(LOW_W + free_w * w / (sum(weights) or 1), HIGH_W) for w in weights]
        if self.random.random() < 0.05:
            caps_w[0] = self.random.choice([LOW_W - 1, HIGH_W + 1, self.budget_w])
        wrong = sum(caps_w) > self.budget_w + GRAIN_W or not all(LOW_W <= cap_w <= HIGH_W for cap_w in caps_w)
        seen = self.node.writes
        try:
            self.it.aim(dict(zip(self.uuids, caps_w, strict=True)), self.now_s)
        except ConfigError:
            assert wrong
        else:
            assert not wrong
        assert self.node.writes == seen

    def hurt(self) -> None:
        """Something happens to a device, or to the controller."""
        gpu = self.random.choice(self.node.gpu[: self.node.gpus])
        match self.random.randrange(8):
            case 0 | 1:
                gpu.demand_w = self.random.choice([120.0, 300.0, 500.0, 900.0])
            case 2:
                gpu.write_fault = self.random.choice((0, *FAULTS))
                gpu.good_writes = self.random.randrange(2)
            case 3:
                gpu.read_fault = self.random.choice((0, *FAULTS))
            case 4:
                gpu.deaf = self.random.randrange(2)
                self.ever_deaf = self.ever_deaf or bool(gpu.deaf)
            case 5:
                with pytest.raises(HostError, match="sets the caps of this node already"):
                    SavedCaps(self.folder)
            case _:
                if self.random.random() < 0.3:
                    self.kill()

    def kill(self) -> None:
        """The controller is killed, and another one starts, sooner or later."""
        self.starts.killed()
        self.saved.close()
        self.now_s += self.random.choice([0.0, 0.05, 2.0])
        self.node.clock_s = self.now_s
        healthy = [(gpu.read_fault, gpu) for gpu in self.node.gpu[: self.node.gpus]]
        for _, gpu in healthy:
            gpu.read_fault = 0  # a start needs every device
        self.begin()

    def play(self) -> None:
        """Run all of it."""
        for _ in range(self.random.randint(10, 40)):
            self.step()
            if self.random.random() < 0.25:
                self.plan()
            if self.trouble and self.random.random() < 0.15:
                self.hurt()
        self.finish()

    def finish(self) -> None:
        """Everything is mended, and the controller stops."""
        self.trouble = self.starts.trouble = False
        for gpu in self.node.gpu[: self.node.gpus]:
            gpu.read_fault = gpu.write_fault = gpu.deaf = 0
        for _ in range(60):  # calls that hang come back, too
            self.step()
        self.gives_back_from = self.node.writes
        self.it.give_back()
        for _ in range(40):
            if not self.it.not_back:
                break
            self.step()
        self.it.forget()
        self.saved.close()


def wrongs(story: Story) -> Iterator[str]:
    """Say what is wrong with what the library saw."""
    node = story.node
    caps_w, total_w = list(story.before_w), sum(story.before_w)
    bound_w = story.budget_w + 1e-3 * node.gpus
    for number, (gpu, watts, result) in enumerate(node.written()):
        if number == story.gives_back_from:
            bound_w = max(bound_w, sum(story.before_w) + GRAIN_W * node.gpus)
        if not LOW_W - 1e-3 <= watts <= HIGH_W:
            yield f"write {number}: {watts} W is outside the limits"
        if result:
            continue
        caps_w[gpu] = watts
        if sum(caps_w) > max(bound_w, total_w):
            yield f"write {number}: the sum rose from {total_w} to {sum(caps_w)} W, the budget is {story.budget_w} W"
        total_w = sum(caps_w)
    after_w = node.limits_w()
    if any(abs(a - b) > GRAIN_W for a, b in zip(after_w, story.before_w, strict=True)):
        yield f"the caps are {after_w} W, before they were {story.before_w} W"
    if (story.folder / "caps.json").exists():
        yield "the caps from before are still saved"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory: each start writes to the disk, and waits for it."""
    memory = Path("/dev/shm")  # noqa: S108 - only where it is
    made = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    yield made
    shutil.rmtree(made)


def play(seeds: range, node: Node, backend: NvmlBackend, folder: Path) -> dict[str, int]:
    """Run stories; return what happened in all of them."""
    seen: dict[str, int] = {}
    for seed in seeds:
        story = Story(seed, node, backend, folder)
        story.play()
        assert list(wrongs(story)) == [], seed
        for name, count in (*story.it.counts.items(), ("writes", node.writes)):
            seen[name] = seen.get(name, 0) + count
    return seen


@pytest.mark.moderate
def test_no_story_passes_the_budget(nvidia: Standin, nvml: NvmlBackend, folder: Path) -> None:
    seen = play(range(200), nvidia.node, nvml, folder)
    assert seen["writes"] > 1000
    assert min(seen[name] for name in ("rollback", "timeout", "permission", "lost")) > 5


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_story_of_ten_thousand_passes_the_budget(nvidia: Standin, nvml: NvmlBackend, folder: Path) -> None:
    play(range(1000, 11_000), nvidia.node, nvml, folder)


@pytest.mark.moderate
def test_the_judgement_rejects_who_raises_before_the_draw_obeys(
    nvidia: Standin, nvml: NvmlBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that takes every device at its word lets caps rise too early: some story shows it."""
    from pdplugins.power.transaction import Account, CapTransaction  # noqa: PLC0415

    def hasty(self: CapTransaction[str], waiting: list[tuple[str, Account]]) -> list[tuple[str, float]]:
        return [(key, one.target_w) for key, one in waiting]

    monkeypatch.setattr(CapTransaction, "_rises", hasty)
    found = 0
    for seed in range(60):
        story = Story(seed, nvidia.node, nvml, folder)
        story.play()
        found += bool(list(wrongs(story)))
        (folder / "caps.json").unlink(missing_ok=True)
    assert found > 10


def test_what_all_could_draw_keeps_the_budget_too(nvidia: Standin, nvml: NvmlBackend, folder: Path) -> None:
    """Where devices obey, the watts that they could draw stay within the budget at every instant, once they were."""
    for seed in range(40):
        story = Story(seed, nvidia.node, nvml, folder)
        story.trouble = False
        within = False
        for _ in range(40):
            story.step()
            for uuid in story.uuids:
                nvml.read(uuid)
            could_w = math.fsum(gpu.kept_w for gpu in nvidia.node.gpu[: nvidia.node.gpus])
            slack_w = PATIENCE.tolerance_w * nvidia.node.gpus
            assert not within or could_w <= story.budget_w + slack_w, seed
            within = within or could_w <= story.budget_w
            if story.random.random() < 0.25:
                story.plan()
        story.finish()
        assert list(wrongs(story)) == []
