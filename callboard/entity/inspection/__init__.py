"""What can be seen of entities from outside: figures and events."""
