"""Topics: filters, what peers are told, statuses and errors."""
