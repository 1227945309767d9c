"""The flow protocol, pure: messages, one side's machine, the broker's table, rules."""
