"""Double of nki.language."""

from kernels.interpreter.language import *  # noqa: F403
