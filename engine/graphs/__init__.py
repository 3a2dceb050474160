"""Compiled graphs: what is rewritten in them before a device compiler sees them."""
