"""Studies made of many simulations or a linear program: the bound, deployment plans, validation."""
