"""Connections of MQTT clients: listeners, streams, and the link of each client."""
