"""Mutants of a real kernel on the interpreter: the suite that ships catches them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.cli.kernel_mutation import HOOK
from harness.cli.main import main
from harness.cli.parity import KERNELS, select_cases, targets_for
from harness.core.case import Case
from harness.core.status import OpStatus
from harness.run.store import read_ledger
from kernels.interpreter import isa

CASE = Case("rms_norm", {"T": 5, "d": 64})


def test_every_change_of_a_recorded_kernel_can_be_applied_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURON_HARNESS_BACKEND", "interpret")
    selection = select_cases([], ["rms_norm"], "tiny", "smoke")
    judge = targets_for(KERNELS).judge(selection.tolerances, backend="interpret")
    before = dict(vars(isa))
    mutants = HOOK.recorded("rms_norm", lambda: judge.run(CASE) and None)
    assert {mutant.change.split()[0] for mutant in mutants} >= {"drop", "constant", "reduce_op"}
    files = {mutant.site.partition(":")[0] for mutant in mutants}
    assert files <= {"rms_norm_nki.py", "inverse_rms.py", "tile_masks.py"}
    statuses = []
    for mutant in mutants:
        with HOOK.applied(mutant):
            statuses.append(judge.run(CASE).status)
    assert statuses.count(OpStatus.PASS) < len(statuses) / 4
    assert dict(vars(isa)) == before
    assert judge.run(CASE).status is OpStatus.PASS


@pytest.mark.slow
def test_the_shipped_smoke_suite_catches_95_percent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            ["parity", "--mutation", "auto", "--count", "60", "--seed", "3", "--out", str(tmp_path)]
        )
    printed = capsys.readouterr().out
    assert not ended.value.code, printed
    (run,) = tmp_path.iterdir()
    (record,) = read_ledger(run / "metric.jsonl").records
    assert record.key == "parity.mutation.caught_share"
    assert record.payload["values"][0] >= 0.95
    assert re.search(r"caught as .*OUT_OF_TOLERANCE", printed)


def test_another_kind_of_mutation_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["--mutation", "all"], ["--mutation", "auto", "--backend", "device"]):
        with pytest.raises(SystemExit) as ended:
            main(["parity", *arguments, "--out", str(tmp_path)])
        assert ended.value.code == 2
        assert "--mutation" in capsys.readouterr().err
