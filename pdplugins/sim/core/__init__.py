"""The event loop, the engines and everything else that happens in virtual time."""
