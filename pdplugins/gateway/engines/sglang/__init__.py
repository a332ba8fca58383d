"""The gateway's side of SGLang: its HTTP protocol and its servers."""
