"""How processes end together: the fork server with its command, temporary files with both."""

from __future__ import annotations

import os
import shutil
import signal
from functools import cache
from multiprocessing import forkserver, process, util

__all__ = ["end_fork_server_at_exit", "remove_temporary_directory_of_parent"]

# After multiprocessing has ended the children (from 0 on), before it removes its directory (-100).
_EXIT_PRIORITY = -50


@cache
def end_fork_server_at_exit() -> None:
    """When this process exits, its fork server, if one runs, is gone before.

    By itself the server ends some time after the process that started it.
    """
    util.Finalize(None, _end_fork_server, exitpriority=_EXIT_PRIORITY)


def _end_fork_server() -> None:
    server = forkserver._forkserver
    pid = getattr(server, "_forkserver_pid", None)
    if pid is not None:
        # It keeps no state: what it would do at its end is close its socket.
        os.kill(pid, signal.SIGKILL)
        server._stop()  # type: ignore[attr-defined]


def remove_temporary_directory_of_parent() -> None:
    """For a child whose parent was killed: the parent's multiprocessing directory is left over."""
    directory = process.current_process()._config.get("tempdir")  # type: ignore[attr-defined]
    if directory:
        shutil.rmtree(directory, ignore_errors=True)
