"""Doors: drivers that carry messages between the topics of a node and foreign software."""
