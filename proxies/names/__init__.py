"""Names of actors and groups: registered on one node, found and watched on all in reach."""
