"""Figures of the process of a node."""
