"""The PD gateway: one OpenAI-compatible endpoint over SGLang servers, where a router plugin places every request."""
