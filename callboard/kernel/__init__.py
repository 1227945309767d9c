"""The interface of the core: what packages use of actors, nodes and links.

`docs/kernel.md` explains it. Each module is one subject and imports no more than that needs.
"""
