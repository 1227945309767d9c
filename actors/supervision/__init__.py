"""Supervisors: the rules of supervision, and the actor that carries them out."""
