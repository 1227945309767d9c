"""The databases of a simulated cluster: one model for each URL of a state."""
