"""Results that are known to be older than the code they measure: to be made again. The tests pass them over."""

OLD = {
    "fidelity-silicon",
    # Of DOPD's forecasts, which changed since, fusion uses none here: it does not scale.
    "fusion-ablation",
    "fusion-sensitivity",
}
