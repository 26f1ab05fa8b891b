"""Training, export and evaluation of one model. Never imports `launch`."""
