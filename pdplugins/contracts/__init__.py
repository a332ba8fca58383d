"""The inputs and answers of policies: frozen data and protocols, with one file for each kind of plugin.

Nothing here knows a host, a clock or a file. Time is an argument (``now_s``). Lengths are in tokens, and the name of
every other quantity ends in its unit. ``None`` always means *the host did not say*; it never means zero.
`pdplugins.types` is the public face of this package.
"""
