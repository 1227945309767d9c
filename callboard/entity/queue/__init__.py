"""Durable work queues: jobs are put, taken, and acknowledged or given back."""
