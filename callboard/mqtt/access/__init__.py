"""Authentication and authorization of MQTT clients."""
