"""Who may ask a gateway what, and how it proves itself: keys of clients and workers, TLS, the admin listener."""
