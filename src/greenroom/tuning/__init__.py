"""Hyperparameter search. Knows spaces and suggestions; training and MLflow are its callers'."""
