"""Rights inside a cluster: who a link belongs to, what that peer may do, and who refuses."""
