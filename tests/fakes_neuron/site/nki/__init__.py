"""Double of AWS's nki: the bundled interpreter under the real name."""

from kernels.interpreter.nki import jit, simulate

__version__ = "0.7.0"
__all__ = ["__version__", "jit", "simulate"]
