"""The model's layers (model.md §2.12) on an op table and a group of ranks."""
