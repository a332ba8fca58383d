"""A discrete-event simulator of disaggregated serving: the host that needs no GPU and no other host."""
