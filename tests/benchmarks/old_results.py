"""Results that are known to be older than the code they measure: to be made again. The tests pass them over."""

OLD = {
    # Since then fusion's steps are a bit longer, and its prefill-only workers have full steps waiting. What the map
    # says of co-location and splits does not depend on it.
    "where",
}
