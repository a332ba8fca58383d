"""SGLang: any role per request in one server, and batch schedulers on the real engine, as an SGLang plugin."""
