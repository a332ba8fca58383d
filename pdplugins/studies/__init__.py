"""Questions that take many simulations or a programme: the bound, deployment plans, validation."""
