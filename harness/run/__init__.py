"""Procedures: make inputs, compare, time, store. They know neither the islands nor the reports."""
