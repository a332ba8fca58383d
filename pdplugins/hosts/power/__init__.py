"""The host of power controllers: watts and roles of the GPUs of one node, beside Dynamo, beside SGLang, or alone."""
