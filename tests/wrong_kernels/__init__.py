"""Kernels that are wrong on purpose. README.md says how to add some."""
