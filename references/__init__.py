"""Pure-torch references, one readable file an op; sums in fp32 or fp64, every cast visible."""
