"""The vocabulary every other package speaks. It imports nothing of ours and never torch."""
