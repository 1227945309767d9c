"""Commands about durable state of a running cluster."""
