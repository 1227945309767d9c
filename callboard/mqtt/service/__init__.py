"""The router as a service: its configuration, its actor, and the services that run with it."""
