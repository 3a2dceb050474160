"""One stage of a run: timed, recorded, and its ending turned into an exit code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console

from harness.core.errors import ExitCode, HarnessError, UsageError

if TYPE_CHECKING:
    from harness.run.store import RunStore

__all__ = ["run_stage"]


def run_stage(
    store: RunStore, screen: Console, name: str, action: Callable[[], ExitCode]
) -> ExitCode:
    """Carry one stage out; its record is written however it ends.

    A HarnessError of the stage becomes its exit code, so that the stages after it still run.

    Raises:
        UsageError: the user's mistake ends the whole run.
    """
    screen.print(f"[bold]{name}[/bold]")
    start = time.perf_counter()
    code, message = ExitCode.INTERNAL, ""
    try:
        code = action()
    except UsageError as error:
        code, message = error.exit_code, str(error)
        raise
    except HarnessError as error:
        code, message = error.exit_code, str(error)
        screen.print(f"  error: {error}", markup=False)
    except KeyboardInterrupt:
        code, message = ExitCode.INTERRUPTED, "interrupted"
        raise
    except BaseException as error:
        message = repr(error)
        raise
    finally:
        elapsed_s = time.perf_counter() - start
        store.append(
            "stage",
            name,
            {
                "name": name,
                "status": code.name,
                "elapsed_s": elapsed_s,
                "exit_code": int(code),
                "message": message,
            },
        )
    screen.print(f"  {name}: {code.name} in {elapsed_s:.1f} s")
    return code
