"""Layout, collectives and launches of a configuration on the meta device, without weights."""
