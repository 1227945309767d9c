"""The work of commands that are more than a page: each is loaded when it runs, not for help."""
