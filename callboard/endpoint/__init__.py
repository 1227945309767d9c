"""Topics and their data: the data model, topic filters, statuses and errors."""
