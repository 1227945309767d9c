"""Fields of payloads: how they are read as columns, and which ones a log declares."""
