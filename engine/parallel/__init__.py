"""Ranks of one model: as processes, and in one process in rank order."""
