"""Names of actors and groups: registered here, found and watched on all nodes in reach."""
