"""How far the simulator's mixed steps are from those that were measured on a GPU.

    python benchmarks/mixed_steps_error.py

`mixed_steps_gpu.py` has measured steps of prefill alone, of decodes alone, and of both in one batch. Of the first two
`mixed_steps_profile.py` has made a profile. Here the simulator computes each mixed step from that profile. Beside it
stand five other formulas; none of them was fitted to mixed steps, but for the factor of ``best_scale``.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import experiment
import manifest
import matplotlib as mpl
from experiment import Row, command, save
from manifest import RESULTS, Data
from mixed_steps_profile import PATH, of

from pdplugins.perf.profile import Profile, read_profile
from pdplugins.perf.table import TableModel
from pdplugins.provenance import record
from pdplugins.sim.core.clock import seconds
from pdplugins.sim.core.steps import StepTimes

NAME = "mixed-steps-error"
SCALES = [round(0.5 + 0.01 * step, 2) for step in range(151)]
"""Values of ``simulation.mixed_step_scale`` to look for the best among."""
AXES = ("tokens", "batch", "context")
GRAPHS = re.compile(r"prefill=PhaseConfig\(.*?bs=\[(?P<sizes>[\d, ]+)\]")


class Step(NamedTuple):
    """A mixed step: a chunk of `tokens` after `earlier` ones, and `batch` decodes of `context` tokens each."""

    tokens: int
    earlier: int
    batch: int
    context: int

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """What the step prefills, as the simulator takes it."""
        return [(self.tokens, self.earlier)]


class Formulas:
    """Times of mixed steps in milliseconds, by the name of a formula.

    :param sizes: tokens of the CUDA graphs that the engine runs prefill and mixed steps in.
    """

    def __init__(self, profile: Profile, sizes: Sequence[int]) -> None:
        self._perf, self._sizes = TableModel(profile), sizes
        self._times = StepTimes(self._perf, 1)
        self._without = StepTimes(TableModel(profile.model_copy(update={"dense": {}})), 1)
        self._scaled = {scale: StepTimes(self._perf, 1, scale) for scale in SCALES}
        self.names: dict[str, Callable[[Step], float]] = {
            "simulator": lambda step: _mixed_ms(self._times, step),
            "without_dense": lambda step: _mixed_ms(self._without, step),
            "sum": lambda step: sum(self._phases_ms(step)),
            "max": lambda step: max(self._phases_ms(step)),
            "padded": self._padded_ms,
        }

    def scaled_ms(self, step: Step, scale: float) -> float:
        """Return what the simulator says at one ``mixed_step_scale``."""
        return _mixed_ms(self._scaled[scale], step)

    def size(self, step: Step) -> int:
        """Return the tokens that the engine computes: those of the step, and what fills its CUDA graph."""
        computed = step.tokens + step.batch
        return next((size for size in self._sizes if size >= computed), computed)

    def _phases_ms(self, step: Step) -> tuple[float, float]:
        decode_s = self._perf.decode_step_s(step.batch, step.context, 1)
        return seconds(self._times.prefill(step.chunks)) * 1e3, decode_s * 1e3

    def _padded_ms(self, step: Step) -> float:
        """The simulator's formula, with the dense part of as many tokens as the engine computes."""
        dense_s = self._perf.dense_s
        more_s = (dense_s(self.size(step), 1) or 0.0) - (dense_s(step.tokens + step.batch, 1) or 0.0)
        return _mixed_ms(self._times, step) + more_s * 1e3


def _mixed_ms(times: StepTimes, step: Step) -> float:
    return seconds(times.mixed(step.chunks, step.batch, step.batch * step.context)) * 1e3


def compared(found: Data, profile: Profile) -> Row:
    """Return each measured mixed step beside what each formula says, and how far these are off."""
    formulas = Formulas(profile, graph_sizes(found))
    rows = [_row(row, formulas) for row in of(found, "mixed")]
    full = [row for row in rows if row["fills_graph"]]
    part = [row for row in rows if not row["fills_graph"]]
    return {
        "steps": {"all": len(rows), "fills_graph": len(full), "padded": len(part)},
        "formulas": [
            {"formula": name, **_spread(rows, name), **_named(full, name, "full"), **_named(part, name, "part")}
            for name in formulas.names
        ],
        "by": [line for axis in AXES for line in _by(rows, axis)],
        "best_scale": best_scale(rows, formulas),
        "rows": rows,
    }


def graph_sizes(found: Data) -> list[int]:
    """Return the sizes of the CUDA graphs of prefill, in tokens."""
    match = GRAPHS.search(found["engine"]["cuda_graph_config"])
    assert match is not None
    return [int(size) for size in match["sizes"].split(",")]


def _row(row: Data, formulas: Formulas) -> Row:
    step = Step(row["tokens"], row["earlier"], row["batch"], row["context"])
    size = formulas.size(step)
    said = {f"{name}_ms": round(formula(step), 4) for name, formula in formulas.names.items()}
    fills = {"graph_tokens": size, "fills_graph": size == step.tokens + step.batch}
    return {**step._asdict(), **fills, "measured_ms": row["gpu_ms"], **said}


def _errors(rows: Sequence[Row], name: str) -> list[float]:
    return [row[f"{name}_ms"] / row["measured_ms"] - 1 for row in rows]


def _spread(rows: Sequence[Row], name: str) -> Row:
    """Return the median, P90 and most of the absolute error of a formula, and the median with its sign."""
    errors = _errors(rows, name)
    sizes = sorted(map(abs, errors))
    return {
        "median_abs": statistics.median(sizes),
        "p90_abs": statistics.quantiles(sizes, n=10, method="inclusive")[-1],
        "most_abs": sizes[-1],
        "median": statistics.median(errors),
    }


def _named(rows: Sequence[Row], name: str, suffix: str) -> Row:
    return {f"{key}_{suffix}": value for key, value in _spread(rows, name).items()}


def _by(rows: Sequence[Row], axis: str) -> Iterator[Row]:
    for value in sorted({row[axis] for row in rows}):
        these = [row for row in rows if row[axis] == value]
        medians = {name: statistics.median(_errors(these, name)) for name in ("simulator", "sum", "max", "padded")}
        spread = _spread(these, "simulator")
        yield {"axis": axis, "value": value, "steps": len(these), **medians, "p90_abs": spread["p90_abs"]}


def best_scale(rows: Sequence[Row], formulas: Formulas) -> Row:
    """Return the ``mixed_step_scale`` with the least mean error, and the errors with it."""

    def at(scale: float) -> list[Row]:
        steps = [(Step(*(row[key] for key in Step._fields)), row["measured_ms"]) for row in rows]
        return [{"scaled_ms": formulas.scaled_ms(step, scale), "measured_ms": ms} for step, ms in steps]

    found = {scale: statistics.fmean(map(abs, _errors(at(scale), "scaled"))) for scale in SCALES}
    best = min(found, key=lambda scale: found[scale])
    return {"scale": best, "mean_abs": found[best], "mean_abs_at_1": found[1.0], **_spread(at(best), "scaled")}


def picture(rows: Sequence[Row]) -> None:
    """Draw what the formulas say over what was measured, against the tokens of a step."""
    plt = experiment.plt
    figure, grid = plt.subplots(1, 3, figsize=(9.6, 3.2), layout="constrained", sharey=True)
    for axes, name, title in zip(grid, ("simulator", "padded", "sum"), TITLES, strict=True):
        for fills, label in ((True, "fills its CUDA graph"), (False, "padded to it")):
            these = [row for row in rows if row["fills_graph"] is fills]
            xs = [row["tokens"] + row["batch"] for row in these]
            ys = [row[f"{name}_ms"] / row["measured_ms"] for row in these]
            axes.scatter(xs, ys, s=10, marker="o" if fills else "x", linewidths=0.8, label=label)
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set(xscale="log", xlabel="tokens computed in the step", title=title)
        axes.set_xticks(TICKS, [f"{tick:,d}" for tick in TICKS], fontsize=8)
        axes.minorticks_off()
        axes.title.set_fontsize(9)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0].set(ylabel="computed / measured", ylim=(0.5, 2))
    grid[0].legend(frameon=False, fontsize=8)
    with mpl.rc_context({"svg.hashsalt": NAME}):
        figure.savefig(RESULTS / f"{NAME}.svg", metadata={"Date": None})
    plt.close(figure)


TICKS = (128, 256, 512, 1024, 2048, 4096)
TITLES = ("simulator", "simulator, with padding", "sum of both phases")


def main() -> None:
    """Compare, and draw the comparison."""
    found = compared(manifest.read("mixed-steps-gpu"), read_profile(PATH))
    save(NAME, {**record("simulated", seed=0, command=command()), **found})
    picture(found["rows"])


def cell() -> dict[str, list[Row]]:
    """Return the table, computed again: benchmarks/equality.py."""
    return {NAME: compared(manifest.read("mixed-steps-gpu"), read_profile(PATH))["rows"]}


if __name__ == "__main__":
    main()
