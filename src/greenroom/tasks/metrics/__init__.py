"""Metric scripts for the `evaluate` library, shipped so that none is fetched from the hub.

Each file is a complete metric: `evaluate.load("accuracy.py")` takes it as well.
"""
