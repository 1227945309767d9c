"""Statistics and events of entities."""
