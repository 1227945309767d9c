"""Logs that a node serves to other machines over BASP, and how these read them."""
