"""Logs on an object store: sealed segments, and the manifests that list them."""
