"""The data model that topics, stores and wires share: fifteen types of values."""
