"""The drawings and charts of the docs, each made from a description in this folder.

`python -m scripts.drawings` writes them all again; with `--check` it tells which of them differ
from what their sources make.
"""
