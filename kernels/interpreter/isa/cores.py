"""The two physical cores of LNC2: barrier and exchange."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.enums import dma_engine, engine
from kernels.interpreter.isa.instruction import SBUF, check_regions, instruction
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.program import Program
from kernels.interpreter.tensor import NkiTensor

__all__ = ["core_barrier", "sendrecv"]


def _two_core_program() -> Program:
    program = LOCAL.program
    assert program is not None
    if program.turns is None:
        refuse("", "called in a launch of one program", "two programs", "launch with kernel[2]")
    program.forbid_replay()
    return program


@instruction
def core_barrier(
    data: Any, cores: Any, engine: engine = engine.gpsimd, name: str | None = None
) -> None:
    """Both programs wait for each other; what one wrote to HBM before, the other may read after."""
    program = _two_core_program()
    launch, turns = program.launch, program.turns
    assert turns is not None
    ranks = tuple(int(core) for core in cores)
    if sorted(ranks) != list(range(launch.num_programs)):
        refuse("cores", list(ranks), f"all of 0..{launch.num_programs - 1}")
    program.barriers += 1
    number = program.barriers
    turns.wait_until(
        program.index,
        lambda: all(
            len(launch.programs) > rank and launch.programs[rank].barriers >= number
            for rank in ranks
        ),
        f"core_barrier {number}",
    )
    for tensor in data if isinstance(data, tuple | list) else (data,):
        if isinstance(tensor, NkiTensor):
            program.count(_BARRIER_PLANS[(tensor.face,)])
            break


def _plan_barrier(face: Face) -> Plan:
    return Plan("core_barrier", "gpsimd", lambda: None, face, (), cycles=1.0)


@instruction
def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: dma_engine = dma_engine.dma,
    name: str | None = None,
) -> None:
    """Send src to one core and receive dst from one, SBUF to SBUF."""
    program = _two_core_program()
    launch, turns = program.launch, program.turns
    assert turns is not None
    plan = _SENDRECV_PLANS[dst.face, src.face]
    for operand, rank in (("send_to_rank", send_to_rank), ("recv_from_rank", recv_from_rank)):
        if not 0 <= rank < launch.num_programs:
            refuse(operand, rank, f"0..{launch.num_programs - 1}")
    outbox = (program.index, send_to_rank, pipe_id)
    inbox = (recv_from_rank, program.index, pipe_id)
    boxes = launch.mailboxes
    boxes.setdefault(outbox, []).append(np.array(src.read("src")))
    turns.wait_until(
        program.index,
        lambda: bool(boxes.get(inbox)),
        f"sendrecv from rank {recv_from_rank} on pipe {pipe_id}",
    )
    received = boxes[inbox].pop(0)
    if received.size != dst.size or received.dtype != dst.dtype.carrier:
        refuse(
            "dst",
            str(dst.face),
            f"what rank {recv_from_rank} sends: {received.dtype} {list(received.shape)}",
        )
    np.copyto(dst.array, received.reshape(dst.shape))
    dst.wrote()
    program.count(plan)


def _plan_sendrecv(dst: Face, src: Face) -> Plan:
    check_regions(src, "src", (SBUF,))
    check_regions(dst, "dst", (SBUF,))
    if dst.shape != src.shape or dst.dtype != src.dtype:
        refuse("dst", str(dst), f"shape and dtype of src, {src}")
    return Plan("sendrecv", "dma", lambda: None, dst, (src,))


_BARRIER_PLANS = Plans(_plan_barrier)
_SENDRECV_PLANS = Plans(_plan_sendrecv)
