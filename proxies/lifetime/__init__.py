"""Proxies and their actors: announce, release, down."""
