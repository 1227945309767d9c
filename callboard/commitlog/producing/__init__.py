"""Producers: whose record is which number, so that a retried append is no second record."""
