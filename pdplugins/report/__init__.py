"""Pages for people: reports that open offline, and the same page live. No script is needed to read them."""
