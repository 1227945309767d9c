"""MQTT 3.1.1 and 5: every MQTT client is a neighbour on the hub."""
