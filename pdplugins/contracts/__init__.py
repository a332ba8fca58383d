"""What policies see and what they answer: frozen data and protocols, one file a kind of plugin.

Nothing here knows a host, a clock or a file. Time is an argument (``now_s``), lengths are in tokens, and the unit of
every other quantity is the end of its name. ``None`` always means *the host did not say*; it never means zero.
`pdplugins.types` is the public face of this package.
"""
