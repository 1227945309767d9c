"""Packets of MQTT 3.1.1 and 5: codec, framing, properties, topics; pure."""
