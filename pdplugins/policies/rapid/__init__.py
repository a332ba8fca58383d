"""RAPID: moves watts and roles between the GPUs of one node, within the node's power budget."""
