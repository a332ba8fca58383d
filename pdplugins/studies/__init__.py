"""Studies that use many simulations or a linear program: the bound, deployment plans, validation."""
