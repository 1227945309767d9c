"""What the demo keeps in entities."""
