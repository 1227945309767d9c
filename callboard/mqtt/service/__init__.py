"""The router as a service: its configuration, its actor, and what runs beside it."""
