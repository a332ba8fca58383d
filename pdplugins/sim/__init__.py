"""A discrete-event simulator of disaggregated serving: the host that needs no GPU and no other host.

It is plain Python. ``python -m pdplugins.sim.compile`` compiles the same sources with mypyc, which makes it about three
times as fast; what is compiled is found by a hash of the sources, so it is never older than they are. Set
``PDPLUGINS_SIM_PURE=1`` to do without.
"""

from pdplugins.sim._speedups import activate

COMPILED = activate(__path__)
"""Whether the compiled engine runs."""
