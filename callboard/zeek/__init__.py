"""Zeek Broker's own wire formats, versions 1.4 and 2.x."""
