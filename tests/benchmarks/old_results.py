"""Results that are known to be older than the code they measure: to be made again. The tests pass them over."""

OLD = {
    # DOPD's planner follows rises since.
    "arena-reporting",
    "fusion-ablation",
    "fusion-price",
    "fusion-rates",
    "fusion-sensitivity",
    "fusion-systems",
    "planners-azure-code",
    "planners-azure-code-kv_router",
    "planners-azure-conversation",
    "planners-azure-conversation-kv_router",
    "planners-mooncake-conversation",
    "planners-mooncake-conversation-kv_router",
    "where",
    "fidelity-silicon",
    "fusion-ablation",
}
