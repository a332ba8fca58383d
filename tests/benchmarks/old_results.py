"""Results that are known to be older than the code they measure: to be made again. The tests pass them over."""

OLD = {
    "simulator-speed-plain",
    "ampd-sessions",
    "ampd-table2",
    "decisions",
    "faults-0.5.16",
    "faults-0.5.23",
    "fidelity-dynamo-azure-code-held",
    "fidelity-dynamo-azure-code-prompts",
    "fidelity-dynamo-azure-code",
    "fidelity-dynamo-azure-conversation-dense",
    "fidelity-dynamo-azure-conversation-prompts",
    "fidelity-dynamo-azure-conversation",
    "fidelity-dynamo-mooncake-prompts",
    "fidelity-dynamo-mooncake",
    "fidelity-papers",
    "fidelity-silicon",
    "gateway-fake",
    "gateway-real",
    "kv-overlap",
    "simulator-speed",
}

UNMARKED = {
    "benchmarks/fidelity.md",
}
"""Pages that quote figures without a mark: to be marked."""
