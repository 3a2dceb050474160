"""The naive oracle model: model.md §2.12 transcribed into numpy, slow and plain.

It shares no code with the engine and none with the reference ops: another array library (numpy
and ml_dtypes), its own safetensors reader, dense masked attention instead of gathered keys,
sorting instead of selection. Where engine and oracle agree, two formulations agree.
"""

from references.oracle.arithmetic import ARITHMETICS, Arithmetic
from references.oracle.config import OracleConfig
from references.oracle.draft import DraftBlock, DraftModel
from references.oracle.model import OracleModel, OracleOutput, OracleState

__all__ = [
    "ARITHMETICS",
    "Arithmetic",
    "DraftBlock",
    "DraftModel",
    "OracleConfig",
    "OracleModel",
    "OracleOutput",
    "OracleState",
]
