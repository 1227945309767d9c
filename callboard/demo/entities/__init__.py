"""The entities of the demo."""
