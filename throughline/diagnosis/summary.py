"""What a profile comes to: as values for the other stages, and in words."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from throughline.diagnosis.trace_breakdown import iterator_table
from throughline.measurement.other_processes import OtherProcesses
from throughline.measurement.rounds import SteadyState
from throughline.measurement.verdict import CrossCheck
from throughline.results.build import InputThroughput
from throughline.results.profiling import (
    UNDECIDED_SIDE,
    Breakdown,
    Diagnosis,
    ProcessProfile,
    ProfileResult,
    RoundTimes,
)
from throughline.shared.progress import echo, echo_fact, echo_problem, echo_result
from whowaits.timing.verdict import UNDECIDED

SIDES: Mapping[str, str] = {
    "both": "from full buffers and from empty ones alike",
    "drained": "from empty buffers, since full ones run down",
    "full": "from full buffers, which stay full",
    UNDECIDED_SIDE: "from full buffers to empty ones",
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was measured and concluded about one configuration, on a `machine`; `input_throughput`
    by build.
    """

    machine: str
    input_throughput: InputThroughput
    state: SteadyState
    others: OtherProcesses
    breakdown: Breakdown
    diagnosis: Diagnosis
    cross_check: CrossCheck | None


def summarize_rounds(state: SteadyState) -> RoundTimes:
    """The rounds of a steady state as values."""

    def mean_ms(block: str) -> tuple[float, ...]:
        return tuple(getattr(each, block).mean_ms for each in state.rounds)

    return RoundTimes(
        side=state.side,
        round_reference_ms=mean_ms("reference"),
        round_model_ms=mean_ms("model"),
        round_full_ms=mean_ms("full"),
        round_drained_ms=mean_ms("drained"),
        train_step_times_ms=tuple(state.train_steps_ms),
        relative_rates=tuple(state.relative_rates),
    )


def summarize(profiled: Profile, batch_size: float) -> ProfileResult:
    """What this process has measured and concluded of steps of so many examples, as values."""
    state, diagnosis, breakdown = profiled.state, profiled.diagnosis, profiled.breakdown
    cross_check = profiled.cross_check
    model_examples_per_s = batch_size / state.model_step_ms * 1e3
    low, high = state.stall_interval_pct
    process = ProcessProfile(
        host=platform.node(),
        input_examples_per_s=profiled.input_throughput.input_examples_per_s,
        model_examples_per_s=model_examples_per_s,
        train_step_ms=state.train_step_ms,
        stall_pct=diagnosis.stall_pct,
        stall_pct_low=low,
        stall_pct_high=high,
        verdict=diagnosis.verdict,
    )
    return ProfileResult(
        verdict=diagnosis.verdict,
        stall_pct=diagnosis.stall_pct,
        stall_pct_low=low,
        stall_pct_high=high,
        stall_side=state.side,
        stall_measurement_s=state.seconds,
        epochs_stall_pct_low=None if cross_check is None else cross_check.low_pct,
        prepared_batches=state.prepared,
        relative_rate=statistics.median(state.relative_rates),
        utilization_pct=diagnosis.utilization_pct,
        wait_pct=diagnosis.wait_pct,
        wait_ms_mean=breakdown.wait_ms_mean,
        wait_ms_p50=breakdown.wait_ms_p50,
        wait_ms_p95=breakdown.wait_ms_p95,
        model_step_ms=state.model_step_ms,
        train_step_ms=state.train_step_ms,
        train_step_ms_low=state.train_step_interval_ms[0],
        train_step_ms_high=state.train_step_interval_ms[1],
        model_examples_per_s=model_examples_per_s,
        reference_examples_per_s=batch_size / state.examples_ratio / state.reference_step_ms * 1e3,
        attainable_examples_per_s=diagnosis.attainable_examples_per_s,
        predicted_gain=diagnosis.predicted_gain,
        gpu_busy_ms=breakdown.gpu_busy_ms,
        gpu_copy_ms=breakdown.gpu_copy_ms,
        autotuned={
            f"{item.path.rpartition('::')[2]} ({item.step})": item.tuned
            for item in breakdown.iterators
            if item.tuned is not None
        },
        machine=profiled.machine,
        others_cpu_pct=profiled.others.cpu_pct,
        idle_cpu_pct=profiled.others.idle_pct,
        busiest_other=profiled.others.busiest,
        processes=(process,),
    )


def print_summary(name: str, result: ProfileResult, folder: Path) -> None:
    """Print verdict, cause, fix and the tree, as they are in a configuration's folder."""
    diagnosis, rounds = Diagnosis.read(folder), len(RoundTimes.read(folder).round_full_ms)
    interval = f"{result.stall_pct_low:.0f} to {result.stall_pct_high:.0f} %"
    echo(f"profile {name}: {rounds} rounds, {SIDES[result.stall_side]}; {diagnosis.evidence}")
    count = len(result.processes)
    which = f"; process {result.slowest} of {count}, the slowest" if count > 1 else ""
    echo_result(f"{diagnosis.verdict}, stall {diagnosis.stall_pct:.0f} % ({interval}){which}")
    for index, one in enumerate(result.processes if count > 1 else ()):
        echo(
            f"  process {index} on {one.host}: its slices alone {one.input_examples_per_s:,.0f}"
            f" examples/s, its model alone {one.model_examples_per_s:,.0f}, a step"
            f" {one.train_step_ms:.2f} ms, stall {one.stall_pct:.0f} %"
        )
    if result.exchange_ms is not None:
        echo_fact(
            f"a step of the training takes {result.exchange_ms:.2f} ms more than that of process"
            f" {result.slowest} alone: what {count} processes exchange"
        )
    if diagnosis.verdict == UNDECIDED:
        echo_problem(f"undecided: {diagnosis.cause}; {diagnosis.fix}")
    gain = (
        ""
        if diagnosis.predicted_gain is None
        else f" (predicted: {diagnosis.predicted_gain:.2f} × the throughput)"
    )
    echo(f"  cause: {diagnosis.cause}\n  fix: {diagnosis.fix}{gain}")
    for finding in diagnosis.findings:
        worth = (
            "gain not known"
            if finding.predicted_gain is None
            else f"{finding.predicted_gain:.2f} ×, confidence {finding.confidence}"
        )
        echo(f"  finding {finding.rule}: {finding.fix} ({worth})")
    for row in iterator_table(Breakdown.read(folder)):
        echo(f"  {row}")
