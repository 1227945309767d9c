"""Golden files: the bytes of all that is on a disk or on a wire, as releases made them.

Each module here is one kind: samples made with fixed ids, nonces, times and seeds. What our
code writes today must be the stored bytes, and the value read from them must equal the sample.
`python -m tests.golden` writes the files anew, for samples that are added; a file that changes
means that nodes, journals and logs of earlier releases are no longer understood.
"""
