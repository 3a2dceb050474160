"""`neuron-harness sweep`: nothing that was measured is lost, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from harness.core.latency import measure_requests
from harness.run.store import read_ledger

COMMAND = [sys.executable, "-c", "from harness.cli.main import main; main()", "sweep"]


def only_run(out):
    (run,) = out.iterdir()
    return run


def points_of(run):
    return {one.key: one.payload for one in read_ledger(run / "sweep.jsonl").records}


def test_a_sweep_records_every_point_with_raw_samples(
    command, checkpoint, sweep_spec, tmp_path, capsys
):
    out = tmp_path / "runs"
    code = command("sweep", "--spec", sweep_spec, "--checkpoint", checkpoint, "--out", out)
    assert code == 0
    assert "OK        fast cp=1 in=4: TTFT" in capsys.readouterr().out
    points = points_of(only_run(out))
    assert sorted(point["config"]["input_len"] for point in points.values()) == [4, 8]
    for point in points.values():
        samples = measure_requests(point["requests"])
        assert (samples.num_completed, samples.num_failed) == (2, 0)
        assert len(samples.itl_ms) == 2 * 2
        assert min(samples.ttft_ms) > 0
        assert {one["prompt_len"] for one in point["requests"]} == {point["config"]["input_len"]}
        assert len(point["warmups"]) == 1
        assert point["counters"]["collectives_per_layer"] == 0
    metrics = {one.key: one.payload for one in read_ledger(only_run(out) / "metric.jsonl").records}
    assert metrics["sweep.fast.cp=1.in=4.out=3.status"]["values"] == ["OK"]
    (ttft,) = metrics["sweep.fast.cp=1.in=4.out=3.ttft_ms"]["values"]
    assert ttft > 0


def test_points_over_max_model_len_are_pruned_and_the_others_run(
    command, checkpoint, sweep_spec, tmp_path, capsys
):
    out = tmp_path / "runs"
    code = command(
        *("sweep", "--spec", sweep_spec, "--checkpoint", checkpoint, "--out", out),
        *("--input-len", "4,126"),
    )
    assert code == 0
    assert "input 126 + output 3 = 129 tokens, over max_model_len 128" in capsys.readouterr().out
    statuses = [point["status"] for point in points_of(only_run(out)).values()]
    assert sorted(statuses) == ["OK", "PRUNED"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--input-len", "500"], "over max_model_len 128"),
        (["--cp", "3"], "cp=3"),
        (["--input-len", "4,4"], "repeats a value"),
        (["--input-len", "0"], "at least 1"),
        (["--run", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_request_ends_with_2(
    command, checkpoint, sweep_spec, tmp_path, capsys, options, said
):
    code = command(
        *("sweep", "--spec", sweep_spec, "--checkpoint", checkpoint),
        *("--out", tmp_path / "runs", *options),
    )
    assert code == 2
    assert said in capsys.readouterr().err


def start(checkpoint, spec, out, *options):
    command = [*COMMAND, "--spec", spec, "--checkpoint", checkpoint, "--out", out, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def await_first_point(process, out):
    """The run directory, as soon as one point is on disk."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for ledger in out.glob("*/sweep.jsonl"):
            if ledger.read_bytes().count(b"\n") >= 1:
                return ledger.parent
        time.sleep(0.01)
    raise AssertionError(f"no point in time: {process.communicate()}")


@pytest.fixture
def long_spec(sweep_spec):
    """Two engines; the second has far more work than a test waits for."""
    text = sweep_spec.read_text().replace("output_len = 3", "output_len = 30")
    text = text.replace("num_repeats = 2", "num_repeats = 1")
    sweep_spec.write_text(text.replace("[engine]", "cps = [1, 2]\n[engine]"))
    return sweep_spec


@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_sweep_that_was_ended_keeps_its_points_and_resumes(
    command, checkpoint, long_spec, tmp_path, capsys, ending, code
):
    out = tmp_path / "runs"
    process = start(checkpoint, long_spec, out)
    run = await_first_point(process, out)
    os.kill(process.pid, ending)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code
    if ending is signal.SIGINT:
        assert "interrupted; finished work is kept" in error
    kept = points_of(run)
    assert kept
    assert {point["status"] for point in kept.values()} == {"OK"}
    with (run / "sweep.jsonl").open("a") as ledger:
        ledger.write('{"torn')
    resumed = command(
        *("sweep", "--spec", long_spec, "--checkpoint", checkpoint, "--run", run),
        *("--cp", "1"),
    )
    assert resumed == 0
    assert "already measured" in capsys.readouterr().out
    finished = points_of(run)
    assert {key: finished[key] for key in kept} == kept
    assert sorted(
        point["config"]["input_len"] for point in finished.values() if point["config"]["cp"] == 1
    ) == [4, 8]
