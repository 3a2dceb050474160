"""Ranks that torchrun started: the tokens of the own launcher, and one failure ends all with 5."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from engine import LLM
from engine.parallel import rank_groups, store_link, torchrun
from engine.parallel.failure import Failure
from engine.parallel.launch import Launch
from engine.parallel.message import Message
from engine.parallel.patience import Patience
from engine.parallel.ring import RING_BYTES
from engine.parallel.store_link import SilenceError, StoreLink
from engine.parallel.topology import Topology
from engine.parallel.torchrun import first_cause
from harness.core.errors import UsageError
from harness.core.shard_sums import write_sums
from tests.engine.oracle import copied_checkpoint, directory, settings
from tests.process_tree import kept

_ENVIRONMENT = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_a_launch_is_read_from_what_torchrun_sets() -> None:
    launch = Launch.from_environment(_ENVIRONMENT)
    assert launch == Launch(5, 8, 1, 4, 1, "127.0.0.1")
    assert launch.is_on_loopback
    assert not Launch(5, 8, 1, 4, 1, "trn2-0").is_on_loopback


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_one_process_starts_its_own_ranks(environment: dict[str, str]) -> None:
    assert Launch.from_environment(environment) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": ""}, "RANK is missing: a number is needed"),
        ({"RANK": "two"}, "RANK='two': a number is needed"),
        ({"RANK": "8"}, "RANK=8, WORLD_SIZE=8, LOCAL_RANK=1, LOCAL_WORLD_SIZE=4: these do not fit"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR or MASTER_PORT is missing"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Launch.from_environment({**_ENVIRONMENT, **changes})


def test_another_number_of_ranks_than_the_settings_have_is_refused() -> None:
    launch = Launch.from_environment(_ENVIRONMENT)
    assert launch is not None
    launch.check(Topology(4, 2))
    with pytest.raises(UsageError, match=r"8 ranks were started .*, --cp 4 --ep 4 needs 4"):
        launch.check(Topology(4, 1))


def test_a_second_engine_under_one_launch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    served = threading.Event()
    served.set()
    monkeypatch.setattr(torchrun, "_HAS_SERVED", served)
    small = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    for name, value in {**_ENVIRONMENT, **small}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"4 ranks were started .*, --cp 2 --ep 2 needs 2"):
        LLM(settings(cp=2))
    with pytest.raises(UsageError, match="torchrun's ranks serve one engine, this command opens"):
        LLM(settings(cp=4))


def _links(size: int, limit_s: float = 20.0) -> list[StoreLink]:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores = [TCPStore("127.0.0.1", server.port, is_master=False) for _ in range(size)]
    links = [StoreLink(store, rank, size, limit_s) for rank, store in enumerate(stores)]
    links[0].keeps = server  # type: ignore[attr-defined]
    return links


def test_messages_reach_followers_in_order_and_answers_come_back() -> None:
    leader, *followers = _links(3)
    heard: list[list[str]] = [[], []]

    def follow(index: int) -> None:
        link = followers[index]
        link.start_following(lambda: None)
        while (message := link.receive()).method != "stop":
            heard[index].append(message.method)
            link.answer((link.number, index))

    threads = [threading.Thread(target=follow, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for method in ("execute", "propose"):
        number = leader.publish(Message(method))  # type: ignore[arg-type]
        assert leader.collect(number, [2, 1]) == {1: (number, 0), 2: (number, 1)}
        leader.publish(Message("rest"))
        leader.forget_until(number)
    leader.publish(Message("stop"))
    for thread in threads:
        thread.join()
    assert heard == [["execute", "propose"]] * 2


def test_a_leader_that_says_nothing_is_missed() -> None:
    links = _links(2, limit_s=0.3)
    lost = threading.Event()
    links[1].start_following(lost.set)
    with pytest.raises(SilenceError, match=r"rank 0 gave no sign of life for 0\.3 s"):
        links[1].receive()
    assert not lost.is_set()
    links[1].close()


def test_a_rank_that_hangs_is_ended_some_time_after_its_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_link, "_GRACE_S", 0.2)
    links = _links(2, limit_s=0.2)
    lost = threading.Event()
    links[1].start_following(lost.set)
    assert lost.wait(10.0)


def test_waiting_for_ranks_to_load_ends_with_the_first_report() -> None:
    leader, second, third = _links(3)
    leader.say_ready()
    second.say_ready()
    third.report(Failure(2, "raised an exception", "trace", 5, False), bytes(RING_BYTES))
    start = time.monotonic()
    assert 2 in leader.wait_until_ready(60.0)
    assert time.monotonic() - start < 30
    assert leader.reports(0.1)[2][0].trace == "trace"


def test_ranks_know_through_the_store_who_compiles() -> None:
    first, second = _links(2, limit_s=5.0)
    waits = first.patience()
    start = time.monotonic()
    second.note_compilation("layer ratio 4 / attention")
    time.sleep(0.2)
    assert waits.left_s() > 5.0 - 0.1
    second.take_back()
    second.take_back()  # nothing to take back
    time.sleep(0.2)
    assert waits.left_s() <= 5.2 - (time.monotonic() - start) + 0.2


class _Work:
    """A collective that takes so many waits, then ends with or without an error."""

    def __init__(self, num_waits: int, error: str = "") -> None:
        self.num_left = num_waits
        self.error = error

    def wait(self, _limit: object = None) -> None:
        self.num_left -= 1
        if self.num_left > 0:
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)

    def is_completed(self) -> bool:
        return self.num_left <= 0


def test_a_collective_is_given_up_when_patience_is_over() -> None:
    with pytest.raises(RuntimeError, match="timed out"):
        rank_groups._wait_for(_Work(3), Patience(0.0, lambda: False))


def test_a_collective_that_fails_says_why_however_patient_the_rank_is() -> None:
    patience = Patience(60.0, lambda: True)
    rank_groups._wait_for(_Work(3), patience)
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        rank_groups._wait_for(_Work(3, "Connection closed by peer"), patience)


def _report(rank: int, when_ns: int, *, is_collective: bool) -> tuple[Failure, bytes]:
    failure = Failure(rank, f"reason {rank}", f"trace {rank}", when_ns, is_collective)
    return failure, bytes(RING_BYTES)


def test_the_first_failure_of_a_ranks_own_making_is_to_blame() -> None:
    reports = {
        0: _report(0, 1, is_collective=True),
        1: _report(1, 9, is_collective=False),
        3: _report(3, 4, is_collective=False),
    }
    assert str(first_cause(reports, 4, 60.0)).startswith("rank 3 reason 3\ntrace 3")


def test_where_all_reports_are_consequences_the_silent_rank_is_to_blame() -> None:
    reports = {0: _report(0, 1, is_collective=True), 2: _report(2, 2, is_collective=True)}
    error = first_cause(reports, 3, 60.0)
    assert (error.rank, error.reason) == (1, "died without a word, or gave no answer within 60 s")


_PROGRAM = """
    import os, sys
    from engine import LLM
    from harness.core.engine_face import REFERENCE_OPS, EngineSettings
    from harness.core.errors import RankError
    from tests.engine.slow_compilers import slow_first_compilation

    ops = (*REFERENCE_OPS, *(f"tests.engine.faulty_ops:{name}" for name in sys.argv[2:]))
    compiled = {}
    if os.environ.get("SLOW_COMPILER"):
        compiled = {"enforce_eager": False, "compile_backend": "aten"}
        if os.environ["RANK"] == "1":
            slow_first_compilation(14.0)
    if os.environ["RANK"] == "1":
        sys.argv[1] = os.environ.get("CHECKPOINT_OF_RANK_1", sys.argv[1])
    settings = EngineSettings(
        sys.argv[1],
        **{"cp": 2, "numerics": "exact", "num_threads": 1, "ops": ops, "time_limit_s": 8.0},
        **compiled,
    )
    try:
        with LLM(settings) as llm:
            print("ids", llm.generate([[5, 6, 7]], max_tokens=4)[0].token_ids, flush=True)
    except RankError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _torchrun(*program: str, limit_s: float = 150.0) -> list[subprocess.CompletedProcess[str]]:
    """The program on two hosts of one rank, both of them this one."""
    port = _free_port()
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    for name in _ENVIRONMENT:
        environment.pop(name, None)
    commands = [
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"),
            *("--master-addr", "127.0.0.1", "--master-port", str(port), *program),
        ]
        for node in range(2)
    ]
    ended = []
    with ExitStack() as stack:
        started = [
            stack.enter_context(kept(command, environment=environment, directory=root))
            for command in commands
        ]
        for process in started:
            out, err = process.communicate(timeout=limit_s)
            ended.append(subprocess.CompletedProcess((), process.returncode, out, err))
    return ended


def _processes_with(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue  # it ended meanwhile
        if text.encode() in command:
            found.append(entry.name)
    return found


@pytest.mark.slow
def test_generate_under_torchrun_gives_the_ids_of_the_own_launcher() -> None:
    with LLM(settings(cp=2)) as llm:
        (expected,) = llm.generate([[5, 6, 7]], max_tokens=4)
    first, second = _torchrun(
        *("-m", "harness.cli.main", "generate", "--checkpoint", str(directory("steady_mtp"))),
        *("--ids", "5,6,7", "--max-tokens", "4", "--ignore-eos", "--numerics", "exact"),
        *("--cp", "2", "--json"),
    )
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    told: dict[str, Any] = json.loads(first.stdout)
    assert tuple(told["token_ids"]) == expected.token_ids
    assert second.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("RAISES", "ArithmeticError: injected: the norm of rank 1 is broken"),
        ("DIES", "rank 1 died without a word, or gave no answer within 8 s"),
        ("HANGS", "rank 1 died without a word, or gave no answer within 8 s"),
    ],
)
def test_a_rank_that_fails_ends_all_with_the_code_of_a_rank_error(
    fault: str, said: str, tmp_path: Path
) -> None:
    program = tmp_path / f"torchrun_{fault.lower()}.py"
    program.write_text(textwrap.dedent(_PROGRAM))
    first, second = _torchrun(str(program), str(directory("steady_mtp")), fault)
    assert (first.returncode, second.returncode) == (1, 1)  # torchrun's own code
    assert said in first.stderr
    assert "collectives entered" in first.stderr
    assert re.search(r"exitcode\s*: 5 ", first.stderr)
    assert "ids" not in first.stdout
    assert _processes_with(str(program)) == []


@pytest.mark.slow
def test_a_rank_that_compiles_longer_than_the_limit_is_waited_for_under_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(settings(cp=2)) as llm:
        (expected,) = llm.generate([[5, 6, 7]], max_tokens=4)
    monkeypatch.setenv("SLOW_COMPILER", "1")
    program = tmp_path / "torchrun_compiles.py"
    program.write_text(textwrap.dedent(_PROGRAM))
    first, second = _torchrun(str(program), str(directory("steady_mtp")))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert f"ids {expected.token_ids}" in first.stdout


@pytest.mark.slow
def test_a_host_whose_shard_is_damaged_is_named_by_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = copied_checkpoint("steady_mtp", tmp_path)
    write_sums(damaged)
    shard = damaged / "model.safetensors"
    content = bytearray(shard.read_bytes())
    content[-9] ^= 2
    shard.write_bytes(content)
    monkeypatch.setenv("CHECKPOINT_OF_RANK_1", str(damaged))
    program = tmp_path / "torchrun_damaged.py"
    program.write_text(textwrap.dedent(_PROGRAM))
    first, second = _torchrun(str(program), str(directory("steady_mtp")))
    assert f"rank 1 refuses: {shard}: sha256 is " in first.stderr
    assert f"InputError: {shard}: sha256 is " in second.stderr
    assert re.search(r"exitcode\s*: 5 ", first.stderr)
