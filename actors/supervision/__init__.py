"""Supervisors: the rules of supervision, and the actor that applies them."""
