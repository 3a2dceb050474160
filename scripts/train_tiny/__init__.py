"""Trains tiny-T, the tiny checkpoint with something to say: `python -m scripts.train_tiny`."""
