"""A stand-in for AWS's packages and device: doubles that torch and our code cannot tell apart.

`site/` is a directory of importable packages. With it on PYTHONPATH a new process has `nki` (the
bundled interpreter under that name), `torch_neuronx` (autoloaded by torch, as the real one) and a
PrivateUse1 device named neuron whose memory is the CPU's. What it computes is CPU work; a test
through it shows how our code talks to a device, never what a device answers.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["SITE", "stand_in_environment"]

SITE = Path(__file__).parent / "site"


def stand_in_environment(**changes: str) -> dict[str, str]:
    """Environment of a process on the stand-in host.

    Args:
        changes: variables on top, e.g. NEURON_LOGICAL_NC_CONFIG="1".
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NEURON_", "FAKE_"))}
    paths = [str(SITE), *filter(None, [inherited.get("PYTHONPATH", "")])]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "NEURON_LOGICAL_NC_CONFIG": "2",
        "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
        **changes,
    }
