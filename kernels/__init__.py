"""NKI kernels of DeepSeek-V4.1-Flash, and a CPU interpreter that executes them."""
