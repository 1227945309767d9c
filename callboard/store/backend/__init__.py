"""Backends: where masters keep what must outlive them."""
