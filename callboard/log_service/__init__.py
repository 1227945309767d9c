"""Serves logs of a node to other machines over BASP, for reading and appending."""
