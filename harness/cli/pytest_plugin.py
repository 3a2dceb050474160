"""`pytest --parity suites/ops/rms_norm.toml`: one test a case id.

Cases run as `neuron-harness parity` runs them: in a worker of their own, under limits. What is not
PASS fails, UNSUPPORTED and SKIPPED included: a kernel that was not judged has not passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.core.case import Case

if TYPE_CHECKING:
    from harness.core.results import ParityResult
    from harness.run.parity_workers import ParityWorkers

__all__ = ["ParityCase", "ParityFile"]

_WORKERS = pytest.StashKey[dict[Path, "ParityWorkers"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the group "kernel parity"."""
    group = parser.getgroup("kernel parity")
    group.addoption("--parity", action="append", metavar="TOML", help="a suite; repeatable")
    group.addoption("--parity-tier", default="default", help="smoke, default or full")
    group.addoption("--parity-backend", default="interpret", help="interpret, simulate or device")
    group.addoption("--parity-kernels", help="target text of the op table under test")


def pytest_configure(config: pytest.Config) -> None:
    """Collect the suites: alone, unless tests were named too."""
    suites = config.getoption("--parity")
    if not suites:
        return
    missing = [suite for suite in suites if not Path(suite).is_file()]
    if missing:
        raise pytest.UsageError(f"--parity {missing[0]}: there is no such file")
    named = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
    config.args = [*named, *suites]
    config.stash[_WORKERS] = {}


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ParityFile | None:
    """A suite named by --parity."""
    suites = parent.config.getoption("--parity") or ()
    if any(Path(suite).resolve() == file_path for suite in suites):
        collected: ParityFile = ParityFile.from_parent(parent, path=file_path)
        return collected
    return None


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the workers."""
    for workers in config.stash.get(_WORKERS, {}).values():
        workers.__exit__()


class ParityFile(pytest.File):
    """A suite's TOML file."""

    def collect(self) -> Iterable[ParityCase]:
        """Its cases of the chosen tier.

        Raises:
            CollectError: the file is wrong.
        """
        from harness.core.errors import HarnessError
        from suites.loader import load_op_suite

        try:
            cases = load_op_suite(self.path).cases_of(self.config.getoption("--parity-tier"))
        except HarnessError as error:
            raise self.CollectError(str(error)) from error
        for case in cases:
            yield ParityCase.from_parent(self, name=case.case_id, case=case)

    def workers(self) -> ParityWorkers:
        """One pool a file: its tolerances are the file's."""
        from harness.cli.parity import KERNELS, targets_for
        from harness.run.parity_workers import ParityWorkers
        from suites.loader import load_op_suite

        pools = self.config.stash[_WORKERS]
        if self.path not in pools:
            pools[self.path] = ParityWorkers(
                targets_for(self.config.getoption("--parity-kernels") or KERNELS),
                {op: dict(by) for op, by in load_op_suite(self.path).tolerances.items()},
                backend=self.config.getoption("--parity-backend"),
            )
        return pools[self.path]


class ParityCase(pytest.Item):
    """One case."""

    def __init__(self, *, case: Case, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.case = case

    def runtest(self) -> None:
        """Judge it.

        Raises:
            ParityError: any status but PASS.
        """
        from harness.core.status import OpStatus

        assert isinstance(self.parent, ParityFile)
        ((_, result),) = self.parent.workers().judge([self.case])
        self.user_properties.append(("status", result.status.value))
        self.user_properties.append(("backend", result.backend))
        for error in result.errors:
            self.user_properties.append((f"budget_ratio.{error.name}", error.budget_ratio))
        if result.status is not OpStatus.PASS:
            raise ParityError(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Status and reason; a kernel's own traceback where it raised."""
        if isinstance(excinfo.value, ParityError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The case id is the test's name."""
        return self.path, None, self.name


class ParityError(Exception):
    """A case that did not pass."""

    def __init__(self, result: ParityResult) -> None:
        detail = f"\n{result.detail}" if result.detail else ""
        super().__init__(f"{result.status.value}  {result.case_id}\n  {result.message}{detail}")
