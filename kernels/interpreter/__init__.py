"""NKI on a plain CPU: memories, instructions and the hardware's refusals."""
