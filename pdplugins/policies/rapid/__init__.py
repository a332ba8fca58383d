"""RAPID: watts and roles move between the GPUs of one node, within the node's power budget."""
