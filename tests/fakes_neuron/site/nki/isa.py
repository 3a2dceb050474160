"""Double of nki.isa."""

from kernels.interpreter.isa import *  # noqa: F403
