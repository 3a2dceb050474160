"""A deterministic generator of tiny checkpoints in the model's own formats."""
