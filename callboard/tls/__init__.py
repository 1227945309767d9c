"""TLS from files: contexts, certificates that are read again, and revocation lists."""
