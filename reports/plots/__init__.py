"""Frames as figures: matplotlib to SVG text, deterministic, legible in light and dark."""
