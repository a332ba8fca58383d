"""Dynamo's request path: a component that registers as the model, and sends each request where a router plugin says."""
