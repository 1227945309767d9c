"""Which member owns which slot: pure."""
