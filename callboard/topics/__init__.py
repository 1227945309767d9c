"""Topics: filters, subscriptions, the overlay's hub, statuses and errors."""
