"""Producers, which number their records, so that a retried append is not a second record."""
