"""A launch's summary as text and as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kernels.interpreter.summary import LaunchSummary

__all__ = ["ESTIMATE_LABEL", "summary_text", "trace_lines"]

ESTIMATE_LABEL = "estimated from documented trn2 rates, not device time"


def summary_text(summary: LaunchSummary) -> str:
    """A few lines for a terminal."""
    lines = [
        f"{summary.kernel_name}[{summary.num_programs}]: {summary.num_instructions} instructions, "
        f"SBUF peak {summary.sbuf_peak_bytes} B, PSUM peak {summary.psum_peak_bytes} B a partition"
    ]
    for use in summary.engines.values():
        lines.append(
            f"  {use.engine:7} {use.instructions:8} instructions {use.read_bytes:12} B read "
            f"{use.write_bytes:12} B written  {use.estimated_ns / 1e3:10.2f} us ({ESTIMATE_LABEL})"
        )
    if summary.dma_rows:
        lines.append(
            f"  DMA rows: {summary.dma_rows}, of which {summary.small_dma_rows} below 2 KiB"
        )
    lines.extend(f"  WARNING {text}" for text in summary.warnings)
    for output in summary.unwritten:
        lines.append(
            f"  UNWRITTEN {output.position} {list(output.shape)}: {output.num_unwritten} elements, "
            f"first {list(output.first)}"
        )
    return "\n".join(lines)


def trace_lines(summary: LaunchSummary) -> Iterator[str]:
    """One JSON object an instruction, where the launch kept them (option `trace`)."""
    for row in summary.trace:
        yield json.dumps({"kernel": summary.kernel_name, **row})
