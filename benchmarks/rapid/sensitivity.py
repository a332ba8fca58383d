"""What RAPID's Figure 8 depends on: the fitted step time, and the two cool-downs."""

from __future__ import annotations

from experiment import Row, publish
from figures8_9 import DYNAMIC, EVEN, OWN, PUBLISHED, SHOWN, TUNED, best_chunk, best_static, mean, prepare
from node import STEP_MS, STEPS_MS, coalesced, node

RATES = [1.5, 1.75, 2.0]
LABELS = {move: label for label, move in DYNAMIC.items()}
COOLDOWNS_S, GPU_COOLDOWNS_S = (0.5, 1.0, 2.0), (1.0, 2.0, 3.0, 4.0, 5.0)


def step_times() -> None:
    """Show how the gain depends on the fitted step time."""
    rows = []
    for step_ms in STEPS_MS:
        for rate in RATES:
            split, tokens = best_static(rate, step_ms), best_chunk(rate, step_ms)
            static = mean(node(*split, step_ms=step_ms), rate, SHOWN)
            dynamic = {
                label: mean(node(*EVEN, move=move, step_ms=step_ms), rate, SHOWN) for label, move in DYNAMIC.items()
            }
            rows.append(
                Row(
                    step_ms=f"{step_ms:g}", qps_per_gpu=f"{rate:g}", best_split=str(split), static=static,
                    coalesced=mean(coalesced(600.0, tokens, step_ms=step_ms), rate, SHOWN), chunk=str(tokens),
                    **dynamic, dyngpu_over_static=dynamic["DynGPU-600W"] / max(static, 1e-3),
                    both_over_static=dynamic["DynGPU-DynPower"] / max(static, 1e-3),
                )
            )  # fmt: skip
    publish(
        "rapid", "figure8-step", rows, notes=[OWN[0].partition(";")[0], OWN[1]], published=PUBLISHED,
        title=f"Figure 8 with other step times than the fitted {STEP_MS} ms",
    )  # fmt: skip


def cooldowns() -> None:
    """Show how the gain depends on the two cool-downs, on the seeds for tuning and on the others."""
    grid = [("gpus", 0.5, gpu_s) for gpu_s in GPU_COOLDOWNS_S]
    grid += [("both", watts_s, gpu_s) for watts_s in COOLDOWNS_S for gpu_s in GPU_COOLDOWNS_S]
    rows = []
    for move, watts_s, gpu_s in grid:
        config = node(*EVEN, move=move, cooldown_s=watts_s, gpu_cooldown_s=gpu_s)
        tuned, shown = (sum(mean(config, rate, seeds) for rate in RATES) / len(RATES) for seeds in (TUNED, SHOWN))
        rows.append(
            Row(
                system=LABELS[move], cooldown_s=f"{watts_s:g}" if move == "both" else "", gpu_cooldown_s=f"{gpu_s:g}",
                on_seeds_10_to_12=tuned, on_seeds_0_to_2=shown,
            )
        )  # fmt: skip
    rows.sort(key=lambda row: (row["system"], -row["on_seeds_10_to_12"]))
    publish(
        "rapid", "figure8-cooldowns", rows,
        title="Figure 8 with other cool-downs: the mean over 1.5, 1.75 and 2 requests/s per GPU",
        published="2 to 6 s after any move; watts at sub-second intervals, GPUs every two to five seconds.",
        notes=["sorted by the first three seeds, on which one would choose; the others show what that is worth"],
    )  # fmt: skip


def main() -> None:
    """Change the cool-downs, then the step time."""
    prepare()
    cooldowns()
    step_times()


def cell() -> dict[str, list[Row]]:
    """Return a part of the tables, computed again."""
    prepare()
    config = node(*EVEN, move="gpus", cooldown_s=0.5, gpu_cooldown_s=GPU_COOLDOWNS_S[-1])
    shown = sum(mean(config, rate, SHOWN) for rate in RATES) / len(RATES)
    row = Row(system=LABELS["gpus"], cooldown_s="", gpu_cooldown_s=f"{GPU_COOLDOWNS_S[-1]:g}")
    return {"rapid-figure8-cooldowns": [row | {"on_seeds_0_to_2": shown}]}


if __name__ == "__main__":
    main()
