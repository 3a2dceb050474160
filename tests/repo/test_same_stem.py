"""Reference, suite, kernel and test of an op share one stem."""

from __future__ import annotations

from harness.core.ops import OP_SHEET
from kernels.catalog import KERNELS
from suites.loader import list_suites
from tests.repo.sources import ROOT

STEMS = sorted({spec.stem for spec in OP_SHEET.values()})


def test_every_stem_has_a_reference() -> None:
    absent = [stem for stem in STEMS if not (ROOT / "references" / f"{stem}.py").is_file()]
    assert absent == []


def test_every_stem_has_a_suite_and_no_suite_lacks_a_stem() -> None:
    assert list(list_suites("ops")) == STEMS


def test_every_kernel_of_the_catalog_has_its_stem_its_file_and_its_test() -> None:
    for op, target in KERNELS.items():
        stem = OP_SHEET[op].stem
        assert target == f"kernels.{stem}_nki:{op}"
        assert (ROOT / "kernels" / f"{stem}_nki.py").is_file(), op
        assert (ROOT / "tests" / "kernels" / f"test_{stem}.py").is_file(), op


def test_every_kernel_file_is_in_the_catalog() -> None:
    listed = {target.partition(":")[0].removeprefix("kernels.") for target in KERNELS.values()}
    found = {path.stem for path in (ROOT / "kernels").glob("*_nki.py")}
    assert found == listed
