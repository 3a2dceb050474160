"""Per-sequence state: window rings, compressor tails, and pages of compressed entries."""
