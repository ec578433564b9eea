"""Derives each configuration's rates, verdict, cause and fix from a race. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from throughline.measurement.verdict import (
    APART_PCT,
    ONCE_MORE,
    Stall,
    Verdict,
    find_contradiction,
    judge,
)
from throughline.race.configurations import ConfigurationRace, Measured
from throughline.results.base import MIN_ROUNDS, Estimate
from throughline.results.profiling import Effort, Finding
from throughline.results.race import Cost, Raced, RaceResult
from throughline.results.train import TrainResult
from throughline.settings import TrainSettings
from whowaits.timing.verdict import COMPUTE_BOUND, UNDECIDED

WORTH = 1.05  # the least speed-up that is worth a change
TIE = 1.05  # gains within this factor are equal: the smaller change comes first
RUNS_ON = "its input keeps running between turns"
SLOW_SERVICE, GPU_IDLE = "slow_service", "gpu_idle"  # rules whose changes cannot be tried
FIX_WHEN_COMPUTE_BOUND = (
    "stop tuning the input; what may help now: a larger batch_size, train.steps_per_execution,"
    " train.mixed_precision, train.jit_compile, or a faster accelerator"
)
FIX_WHEN_CORES_ARE_SHARED = (
    "no change to this configuration gains much; what may help now: less work in its ops, more"
    " cores, or an accelerator for the model"
)
FIX_WHEN_UNKNOWN = (
    "look at the timeline, and at what else uses the disk, the memory and the cores of this machine"
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A configuration that has raced, and its own training."""

    name: str
    findings: Sequence[Finding]
    trained: TrainResult
    settings: TrainSettings
    examples: int  # per epoch
    steps: int  # per epoch
    share: float = 1.0  # processes that train ÷ processes that raced
    same_machine: bool = True


def judge_race(
    racing: ConfigurationRace, subjects: Sequence[Subject], *, machine: Mapping[str, Any]
) -> RaceResult:
    measured, accelerated = racing.measured, racing.on_accelerator
    raced, lost = dict[str, Raced](), dict(measured.lost)
    for subject in subjects:
        name, judged = subject.name, None
        if address := racing.config(name).remote_address:
            why = f"by its epochs, because the workers of {address} keep running between turns"
            judged = judge_by_epochs(subject, measured, on_accelerator=accelerated, why=why)
        elif measured.is_raced(name):
            judged = judge_raced(subject, measured, on_accelerator=accelerated)
        if judged:
            raced[name] = judged
            lost.pop(name, None)  # it was lost after its rounds
        else:
            lost.setdefault(name, lost.get(measured.models[name], "it did not race"))
    return RaceResult(
        machine=machine,
        processes=racing.worker.count,
        seconds=measured.seconds,
        disturbed_by=measured.training.disturbed_by() or "",
        rounds=tuple(measured.rounds),
        configurations=raced,
        lost=lost,
    )


def judge_raced(subject: Subject, measured: Measured, *, on_accelerator: bool) -> Raced:
    race, name, gain = measured.training, subject.name, measured.gain(subject.name)
    training, fed = race.speed(name).times(subject.share), measured.input_speed(name)
    fed = fed and fed.times(subject.share)
    epochs, opened = _comparable_epochs(subject), measured.opened.get(name)
    drift = race.drift(measured.models[name])
    contradiction = find_contradiction(
        training,
        gain,
        fed,
        epochs,
        epoch_s=subject.examples / epochs if epochs else 0.0,
        drift=drift,
        disturbed=bool(race.disturbed_by()),
    )
    if fed and training.value > (1 + APART_PCT / 100) * drift * fed.value:
        fed = None  # its few turns say no more than that
    return _conclude(
        subject,
        measured,
        gain,
        [_with_gain(each, name, measured) for each in subject.findings],
        on_accelerator=on_accelerator,
        training=training,
        input=fed,
        contradiction=contradiction,
        cost=measured.costs.get(name, Cost()),
        first_batch_s=opened and opened.first_batch_s,
        exchange_ms=_exchange_ms(subject, training),
    )


def judge_by_epochs(
    subject: Subject, measured: Measured, *, on_accelerator: bool, why: str
) -> Raced | None:
    """Judge a configuration whose input keeps running between turns, by its warm epochs.

    Their rate is compared with the model alone, give or take `APART_PCT`. None without comparable
    warm epochs, or if the model alone did not race.
    """
    race, model, trained = measured.training, measured.models[subject.name], subject.trained
    epochs = trained.throughput and trained.throughput.warm_examples_per_s
    comparable = subject.same_machine and not trained.epochs_doubt
    if epochs is None or not comparable or model not in race.names:
        return None
    apart, alone = 1 + APART_PCT / 100, race.speed(model).times(subject.share)
    training = Estimate(value=epochs, low=epochs / apart, high=epochs * apart, rounds=0)
    return _conclude(
        subject,
        measured,
        training.times(1 / alone.value),
        [replace(each, untried=each.untried or RUNS_ON) for each in subject.findings],
        on_accelerator=on_accelerator,
        training=training,
        input=None,
        cost=Cost(),
        first_batch_s=None,
        note=why,
    )


def _conclude(
    subject: Subject,
    measured: Measured,
    gain: Estimate,
    findings: Sequence[Finding],
    *,
    on_accelerator: bool,
    contradiction: str = "",
    **figures: Any,
) -> Raced:
    race, model = measured.training, measured.models[subject.name]
    stall, ranked = Stall.of(gain), rank_findings(findings)
    verdict = judge(stall, contradiction, on_accelerator=on_accelerator)
    first = _find_first(ranked, verdict)
    if verdict.name == UNDECIDED:
        cause, fix = verdict.cause, verdict.fix
        if disturbed := race.disturbed_by():
            cause = f"{cause}; {disturbed}"
    elif first:
        cause, fix = f"{first.step}: {first.cause} ({first.evidence})", first.fix
    elif verdict.name == COMPUTE_BOUND:
        cause, fix = "none in the input", FIX_WHEN_COMPUTE_BOUND
    elif on_accelerator:
        cause, fix = "no rule explains it", FIX_WHEN_UNKNOWN
    else:
        cause, fix = "input and model compete for the same cores", FIX_WHEN_CORES_ARE_SHARED
    return Raced(
        verdict=verdict.name,
        cause=cause,
        fix=fix,
        stall_pct=max(0.0, stall.pct),
        stall_pct_low=max(0.0, stall.low_pct),
        stall_pct_high=max(0.0, stall.high_pct),
        model_alone=race.speed(model).times(subject.share),
        model=model,
        contradiction=contradiction,
        gain=first.gain.value if first and first.gain else None,
        findings=tuple(ranked),
        **figures,
    )


def rank_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings: the smallest change among the best gains first, untried ones last."""
    most = max((each.gain.value for each in findings if each.gain), default=1.0)

    def order(finding: Finding) -> tuple[bool, int, float]:
        gain = finding.gain.value if finding.gain else 0.0
        enough = gain * TIE >= most
        return not enough, Effort[finding.effort.upper()] if enough else 0, -gain

    return sorted(findings, key=order)


def _find_first(ranked: Sequence[Finding], verdict: Verdict) -> Finding | None:
    """Return the first worthwhile finding, or an untried one that explains the time."""
    bound = verdict.name != COMPUTE_BOUND
    for each in ranked:
        gain = each.gain
        if bound and gain is not None and gain.above_one and gain.value >= WORTH:
            return each
    untried = SLOW_SERVICE if bound else GPU_IDLE
    return next((each for each in ranked if each.rule == untried), None)


def _with_gain(finding: Finding, name: str, measured: Measured) -> Finding:
    if finding.config is None:
        return finding
    contestant = measured.changes.get((name, finding.rule))
    if contestant is None:
        return replace(finding, untried="it is not certain that the input limits training")
    gain, most = measured.change_gain(name, finding.rule), 1 / measured.gain(name).low
    if gain.rounds < MIN_ROUNDS:
        return replace(finding, untried=measured.lost.get(contestant, "it did not race"))
    if gain.low > (1 + APART_PCT / 100) * most:
        much = f"its {gain.value:.1f}× is more than the model alone allows"
        return replace(finding, untried=f"{much}; {ONCE_MORE}")
    return replace(finding, gain=gain)


def _comparable_epochs(subject: Subject) -> float | None:
    """Return the rate of warm epochs; None if there are none, or the race is not comparable."""
    trained, settings = subject.trained, subject.settings
    _, unit = settings.checkpoint_period
    alike = trained.processes == 1 and unit == "epochs" and not settings.callbacks
    if not alike or not subject.same_machine or trained.epochs_doubt:
        return None
    return trained.throughput and trained.throughput.warm_examples_per_s


def _exchange_ms(subject: Subject, training: Estimate) -> float | None:
    """Return the extra time of a step in training over the race [ms]; None for one process."""
    step = subject.trained.step
    if subject.trained.processes == 1 or step is None:
        return None
    step_ms = subject.examples / subject.steps / training.value * 1e3
    return max(0.0, step.ms_p50 - step_ms)
