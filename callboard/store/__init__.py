"""Replicated stores: commands between a master and its clones, and how they travel."""
