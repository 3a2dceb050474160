"""Weights in the checkpoint's own formats, each rank reading only its slices."""
