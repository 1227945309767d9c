"""The router as a pure machine: sessions, logs, delivery and ingress."""
