"""Bytes of gateways, pure: messages, control messages, messages as lines of JSON."""
