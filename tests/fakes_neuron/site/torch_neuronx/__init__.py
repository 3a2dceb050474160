"""Double of AWS's native torch-neuronx: the device, its kernel face and its op tracking."""

from torch_neuronx.kernels import nki_op, wrap_nki
from torch_neuronx.tracking import clear_op_tracking, get_executed_ops, get_fallback_ops

__version__ = "2.13.3.0"
__all__ = ["clear_op_tracking", "get_executed_ops", "get_fallback_ops", "nki_op", "wrap_nki"]


def _autoload() -> None:
    """What torch calls at the end of its own import."""
    from torch_neuronx.device import register

    register()
