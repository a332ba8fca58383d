"""Results that are known to be older than the code they measure: to be made again. The tests pass them over."""

OLD = {
    "chaos-dynamo",
    "chaos-gateway",
    "simulator-speed-plain",
    "faults-0.5.16",
    "faults-0.5.23",
    "fusion-ablation",
    "fusion-price",
    "fusion-rates",
    "fusion-sensitivity",
    "fusion-systems",
    "gateway-fake",
    "gateway-real",
    "kv-overlap",
    "simulator-speed",
}
