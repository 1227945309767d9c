"""Doors: adapters that carry messages between a node's topics and other software."""
