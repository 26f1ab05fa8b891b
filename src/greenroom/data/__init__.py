"""From a source to a snapshot: read, reconcile, split, encode, write once.

`snapshot` is what other layers call; `sources` and `reconcile` are for a task's `load_examples`.
"""
