"""Thespian's conventions: several actor systems joined over BASP."""
