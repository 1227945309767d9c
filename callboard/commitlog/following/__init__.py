"""Readers that wait for new records: followers, and named readers with a stored place."""
