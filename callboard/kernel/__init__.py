"""The interface of the core to packages: actors, nodes and links.

`docs/kernel.md` explains it. Each module covers one subject and imports no more than it needs.
"""
