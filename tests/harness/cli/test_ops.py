"""The sheet is listed with who serves each op, and what the interpreter executes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.cli.main import main
from harness.cli.ops import presence_of
from harness.core.ops import OP_SHEET
from kernels.catalog import KERNELS
from references.op_table import TABLE


def test_every_op_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ops"])
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert all(op in printed for op in OP_SHEET)


def test_presence_agrees_with_the_tables() -> None:
    for op, spec in OP_SHEET.items():
        presence = presence_of(spec)
        assert presence.reference == (op in TABLE.ops)
        assert presence.kernel == (op in KERNELS)
        assert presence.num_cases is None or presence.num_cases > 0


def test_listing_loads_no_torch() -> None:
    script = (
        "import sys\n"
        "from harness.cli.ops import presence_of\n"
        "from harness.core.ops import OP_SHEET\n"
        "[presence_of(spec) for spec in OP_SHEET.values()]\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_the_instructions_are_printed_with_their_state_and_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ops", "--isa"])
    assert not ended.value.code
    rows = {
        tuple(cell.strip() for cell in line.split("│"))[1:4]
        for line in capsys.readouterr().out.replace("┃", "│").splitlines()
        if "│" in line
    }
    assert ("nki.isa", "partly", "dma_copy") in rows
    assert ("nki.isa", "supported", "tensor_tensor") in rows
    assert ("nki.isa", "not", "nc_matmul_mx") in rows
    assert ("nki.collectives", "not", "all_reduce") in rows
