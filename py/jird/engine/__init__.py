"""One task, end to end: load a model, generate from it."""
