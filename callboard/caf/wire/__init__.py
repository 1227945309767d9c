"""CAF's wire: frames, fields, values and messages. Pure."""
