"""The op suites that ship, and the reader on wrong files."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest
import torch

from harness.core.errors import ExitCode, InputError, UsageError, VacuousError
from harness.core.ops import OP_SHEET
from harness.run.inputs import OP_SCALARS, build_inputs
from harness.run.verdict import needs_tolerance as judged_by_budget
from suites.loader import list_suites, load_op_suite
from suites.op_reader import needs_tolerance
from suites.op_suite import OpSuite

DEMO_OPS = (
    "rms_norm",
    "swiglu",
    "linear_fp8",
    "linear_fp4_grouped",
    "sparse_attention",
    "index_scores",
    "vocab_argmax",
)
STEMS = sorted({spec.stem for spec in OP_SHEET.values()})


@pytest.fixture(scope="module")
def all_suites() -> dict[str, OpSuite]:
    return {stem: load_op_suite(stem) for stem in list_suites("ops")}


def test_every_stem_of_the_sheet_has_a_suite_and_every_op_cases(
    all_suites: dict[str, OpSuite],
) -> None:
    assert sorted(all_suites) == STEMS
    for tier in ("smoke", "default", "full"):
        ops = {case.op for suite in all_suites.values() for case in suite.cases_of(tier)}
        assert ops == set(OP_SHEET)


def test_the_reader_and_the_judge_agree_on_what_a_budget_judges() -> None:
    for spec in OP_SHEET.values():
        for value in spec.outputs:
            assert needs_tolerance(spec, value.name) == judged_by_budget(spec, value.name)


def test_inputs_can_be_built_for_every_case(all_suites: dict[str, OpSuite]) -> None:
    for suite in all_suites.values():
        for case in suite.cases_of("smoke"):
            build_inputs(case, fp8_max=240)
        for case in suite.cases:
            assert set(case.scalars) <= set(OP_SCALARS.get(case.op, {})), case.case_id


def test_case_ids_are_unique_over_all_suites(all_suites: dict[str, OpSuite]) -> None:
    ids = Counter(case.case_id for suite in all_suites.values() for case in suite.cases)
    assert max(ids.values()) == 1


def test_the_tiers_are_nested_and_the_default_one_is_large(all_suites: dict[str, OpSuite]) -> None:
    totals = dict.fromkeys(("smoke", "default", "full"), 0)
    for suite in all_suites.values():
        smoke, default, full = (set(map(id, suite.cases_of(tier))) for tier in totals)
        assert smoke <= default <= full
        for tier in totals:
            totals[tier] += len(suite.cases_of(tier))
    assert totals["default"] >= 600
    assert totals["smoke"] < totals["default"] < totals["full"]


@pytest.mark.parametrize("op", DEMO_OPS)
def test_a_demo_op_has_eight_cases_with_one_row_tails_and_a_probe(op: str) -> None:
    cases = load_op_suite(op).cases_of("smoke")
    families = {case.family for case in cases}
    assert len(cases) >= 8
    assert {"base", "one_row", "tail", "tile_minus_1", "tile_plus_1", "ties"} <= families
    assert {"zero_rows", "extremes"} <= families
    assert any(case.axes["T"] == 1 for case in cases)
    assert any(case.probe for case in cases)


@pytest.mark.parametrize("op", ["linear_fp8", "linear_fp4_grouped", "sparse_attention"])
def test_an_all_zero_block_is_among_the_demo_cases(op: str) -> None:
    (case, *_) = [c for c in load_op_suite(op).cases_of("smoke") if c.family == "zero_block"]
    arguments = build_inputs(case, fp8_max=240)
    first = arguments.positional()[0]
    assert not first.reshape(-1, first.shape[-1])[0, :32].any()
    assert first.any()


def test_the_attention_demo_has_masked_indices_and_wholly_masked_rows() -> None:
    cases = load_op_suite("sparse_attention").cases_of("smoke")
    masked = [build_inputs(c).values["indices"] for c in cases if c.family == "masked_rows"]
    assert masked
    assert all(bool((indices == -1).all(1).any()) for indices in masked)
    base = next(c for c in cases if c.family == "base")
    assert bool((build_inputs(base).values["indices"] == -1).any())


def test_every_op_has_a_probe_and_every_tolerance_a_reason(all_suites: dict[str, OpSuite]) -> None:
    probed = {case.op for suite in all_suites.values() for case in suite.cases if case.probe}
    assert probed == set(OP_SHEET)
    for suite in all_suites.values():
        for per_output in suite.tolerances.values():
            assert all(len(tolerance.reason) > 20 for tolerance in per_output.values())


def test_a_suite_can_be_sent_to_a_worker_process() -> None:
    suite = load_op_suite("hc_mixes")
    assert pickle.loads(pickle.dumps(suite)) == suite
    assert pickle.loads(pickle.dumps(suite.tolerances)) == suite.tolerances


def test_heads_a_rank_reach_from_64_to_1() -> None:
    cases = load_op_suite("sparse_attention").cases_of("default")
    heads = {case.axes["H"] for case in cases if case.family == "sharded"}
    assert {64, 8, 4, 1} <= heads


def test_a_suite_is_found_by_op_by_stem_and_by_path(tmp_path: Path) -> None:
    by_stem = load_op_suite("quantise_fp8")
    assert load_op_suite("dequantise_fp8") == by_stem
    assert set(by_stem.tolerances) == {"quantise_fp8", "dequantise_fp8"}
    path = tmp_path / "mine.toml"
    path.write_text(MINIMAL)
    assert len(load_op_suite(path).cases) == 1


MINIMAL = """
op = "rms_norm"
[tolerance.y]
c = 2.0
c_max = 2
floor = 0
slice_axes = [0]
reason = "one rounding"
[[cases]]
axes = { T = 2, d = 32 }
"""


def _load(tmp_path: Path, text: str) -> OpSuite:
    path = tmp_path / "suite.toml"
    path.write_text(text)
    return load_op_suite(str(path))


def test_a_minimal_file_gives_one_default_case(tmp_path: Path) -> None:
    suite = _load(tmp_path, MINIMAL)
    assert [case.case_id for case in suite.cases] == ["rms_norm/T2-d32/bfloat16/s0"]
    assert suite.tolerances["rms_norm"]["y"].c_max == 2.0
    assert suite.cases_of("default") == suite.cases
    with pytest.raises(VacuousError, match="tier smoke holds no case") as caught:
        suite.cases_of("smoke")
    assert caught.value.exit_code is ExitCode.VACUOUS
    with pytest.raises(UsageError, match="tier 'smok' is not known; did you mean smoke"):
        suite.cases_of("smok")


def test_lists_are_multiplied_out_in_order(tmp_path: Path) -> None:
    text = MINIMAL.replace("{ T = 2, d = 32 }", "{ d = [32, 64], T = [1, 2] }\nseed = [0, 7]")
    ids = [case.case_id for case in _load(tmp_path, text).cases]
    head = [f"rms_norm/T{t}-d{d}/bfloat16/s" for t in (1, 2) for d in (32, 64)]
    assert ids == [f"{start}0" for start in head] + [f"{start}7" for start in head]


@pytest.mark.parametrize(
    ("old", "new", "field", "message"),
    [
        ('op = "rms_norm"', 'op = "rms_nrm"', "op", "did you mean rms_norm"),
        ('op = "rms_norm"', 'op = ["rms_norm", "rope"]', "op", "share one stem"),
        ("c = 2.0", "see = 2.0", "tolerance.y.c", "add the key"),
        ("c = 2.0", "c = -1", "tolerance.y", "is void"),
        ('reason = "one rounding"', 'reason = " "', "tolerance.y", "written reason"),
        ("[tolerance.y]", "[tolerance.z]", "tolerance.z", "no budget judges"),
        ("floor = 0", "floor = 0\nflor = 1", "tolerance.y.flor", "did you mean floor"),
        ("T = 2", "t = 2", "cases[0].axes.T", "add the key"),
        ("T = 2", "T = 2, N = 3", "cases[0].axes.N", "unknown key"),
        ("T = 2", "T = 0", "cases[0].axes.T", "at least 1"),
        ("T = 2", 'T = "2"', "cases[0].axes.T", "an integer"),
        ("[[cases]]", '[[cases]]\nfamily = "tial"', "cases[0].family", "did you mean tail"),
        ("[[cases]]", '[[cases]]\nlayout = "odd"', "cases[0].layout", "unknown layout"),
        ("[[cases]]", '[[cases]]\ntier = "quick"', "cases[0].tier", "unknown tier"),
        ("[[cases]]", '[[cases]]\ndtype = "float64"', "cases[0].dtype", "unknown dtype"),
        ("[[cases]]", "[[cases]]\nsead = 1", "cases[0].sead", "did you mean seed"),
        ("[[cases]]", "[[cases]]\nseed = [1, 1]", "cases[0].seed", "change the seed"),
        ("[[cases]]", "[[cases]]\nscalars = { eps = [1] }", "cases[0].scalars.eps", "a scalar"),
        ("[[cases]]", "extra = 1\n[[cases]]", "tolerance.y.extra", "unknown key"),
    ],
)
def test_a_wrong_file_is_refused_by_key(
    tmp_path: Path, old: str, new: str, field: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        _load(tmp_path, MINIMAL.replace(old, new, 1))
    assert caught.value.field == field
    assert caught.value.file.endswith("suite.toml")


def test_a_missing_tolerance_and_a_needless_one_are_refused(tmp_path: Path) -> None:
    no_budget = 'op = "rms_norm"\n[[cases]]\naxes = { T = 1, d = 32 }\n'
    with pytest.raises(InputError, match="output y needs a tolerance"):
        _load(tmp_path, no_budget)
    exact = MINIMAL.replace("rms_norm", "vocab_argmax").replace("d = 32", "V = 32")
    with pytest.raises(InputError, match="no budget judges"):
        _load(tmp_path, exact.replace("tolerance.y", "tolerance.ids"))


def test_an_empty_suite_is_vacuous(tmp_path: Path) -> None:
    with pytest.raises(VacuousError, match="the suite is empty"):
        _load(tmp_path, MINIMAL.partition("[[cases]]")[0])


def test_an_unknown_suite_is_answered_with_near_names() -> None:
    with pytest.raises(UsageError, match="op suite 'rmsnorm' is not known; did you mean rms_norm"):
        load_op_suite("rmsnorm")
    with pytest.raises(UsageError, match="suite kind 'op' is not known; did you mean ops"):
        list_suites("op")


def test_every_op_is_judged_on_two_cores_with_one_row_and_an_odd_share(
    all_suites: dict[str, OpSuite],
) -> None:
    for op in sorted(OP_SHEET):
        rows = {
            case.axes["T"]
            for suite in all_suites.values()
            for case in suite.cases_of("smoke" if op in DEMO_OPS else "default")
            if case.op == op and case.lnc == 2
        }
        shares = {T // 2 for T in rows} if op == "compress_pool" else rows  # two rows a group
        assert 1 in shares, op
        assert any(share > 1 and share % 2 for share in shares), op


def test_a_case_on_other_than_one_or_two_cores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lnc=3"):
        _load(tmp_path, MINIMAL + "lnc = 3\n")


@pytest.mark.parametrize("op", sorted(OP_SCALARS))
def test_every_scalar_is_set_to_another_value_than_the_models_by_some_case(op: str) -> None:
    cases = load_op_suite(op).cases_of("default")
    used = {name for case in cases if case.op == op for name in case.scalars}
    assert used | {"groups"} >= set(OP_SCALARS[op])  # the groups follow from the axes


def test_the_gates_at_the_floor_lie_in_the_middle_of_two_numbers() -> None:
    case = next(c for c in load_op_suite("engram_gate").cases if c.family == "midpoints")
    values = build_inputs(case, fp8_max=240).values
    middle = values["streams"].double() + values["value"].double().unsqueeze(1) / 2
    below, above = middle * (1 - 2.0**-12), middle * (1 + 2.0**-12)
    assert bool((below.to(torch.bfloat16) != above.to(torch.bfloat16)).all())
