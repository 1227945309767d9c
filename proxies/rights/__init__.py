"""Authorization inside a cluster: identities of links, rights of peers, their enforcement."""
