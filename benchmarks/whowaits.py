"""Are verdict, stall and first advice of `whowaits` right, on trainings as people write them?

    python -m benchmarks.whowaits [--python FILE] [--only TEXT]

Every case is a script. Its true stall is measured separately: it trains on real batches and on
batches from memory in alternating epochs, and the median of pairs counts. The true gain of the
advised change is that of epochs with it. `--python` names an interpreter with what the cases need
(TensorFlow; PyTorch, transformers, Lightning, accelerate, JAX and tf_keras for some).
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command_line import add_choice, command_line, run_cases
from benchmarks.example_trainings import CASES, DRAWING
from whowaits.changes.advice import find_first
from whowaits.changes.edits import CannotBeWritten, edit_source
from whowaits.changes.patch import read_report
from whowaits.report import Report
from whowaits.timing.rounds import median_interval

LIMIT_S = 240.0
REPORTED = ("verdict", "stall_pct", "stall_low_pct", "stall_high_pct", "seconds", "reason")
CLOSE_PCT = 5.0  # points by which an interval may miss the truth, an interval, too


def judge(name: str, *, python: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(CASES[name])
        said = _run([sys.executable, "-m", "whowaits", "--python", python, "--json", str(script)])
        crash = Report(str(script), training="", verdict="CRASH", reason=said.stderr[-300:])
        report = read_report(said.stdout.encode()) or crash
        pairs = _pairs(python, script)
        first = find_first(report.changes)
        best = first or max(report.changes, key=lambda each: each.gain, default=None)
        said_gain, real_gain, edited = (), (), script.with_name("edited.py")
        with suppress(CannotBeWritten):
            if best and best.edits:
                edited.write_bytes(edit_source(script.read_bytes(), str(script), best.edits))
                low, high = median_interval([ms for ms, _ in _pairs(python, edited)])
                pairs += _pairs(python, script)  # again, since the machine's speed drifts
                step_low, step_high = median_interval([ms for ms, _ in pairs])
                said_gain, real_gain = (best.low, best.high), (step_low / high, step_high / low)
    stalls = [100 * (1 - memory / as_it_is) for as_it_is, memory in pairs]
    frozen = (f"{DRAWING.get(name)}: .cache()", "batch: .cache()")
    result = {
        **{key: getattr(report, key) for key in REPORTED},
        "true_pct": statistics.median(stalls),
        "true_range": median_interval(stalls),
        "true_step_ms": statistics.median(ms for ms, _ in pairs),
        "first": first.text if first else "",
        "unsafe": bool(first) and name in DRAWING and first.text.startswith(frozen),
        "said_gain": said_gain,
        "real_gain": real_gain,
    }
    return {**result, "wrong": is_wrong(result)}


def is_wrong(result: dict[str, Any]) -> bool:
    """Return whether the truth contradicts a verdict beyond its noise, or `whowaits` crashed."""
    low, high = result["true_range"]
    if result["verdict"] == "input-bound":
        return high < 20 - CLOSE_PCT
    if result["verdict"] == "compute-bound":
        return low > 15 + CLOSE_PCT
    return result["verdict"] == "CRASH"


def _pairs(python: str, script: Path) -> list[tuple[float, float]]:
    """Return pairs of step times [ms], on real batches and from memory."""
    done = _run([python, str(script)], TRUTH="1")
    found = re.findall(r"^PAIR ([\d.]+) ([\d.]+)", done.stdout, re.MULTILINE)
    if not found:
        raise RuntimeError(f"{script} has not trained: {done.stderr[-2000:]}")
    return [(float(as_it_is), float(memory)) for as_it_is, memory in found]


def _run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    given: Any = {"capture_output": True, "text": True, "timeout": LIMIT_S}
    return subprocess.run(command, check=False, env=env, **given)


def main() -> None:
    parser = command_line("whowaits", __doc__)
    add_choice(parser)
    parser.add_argument("--python", default=sys.executable, metavar="FILE")
    options = parser.parse_args()
    names = [name for name in CASES if options.only in name]
    run = partial(judge, python=options.python)
    results = run_cases(options.work / "whowaits.jsonl", names, run)
    known = [each for each in results if each.get("stall_high_pct") is not None]
    off = [abs(each["stall_pct"] - max(0.0, each["true_pct"])) for each in known]
    gains = [(each["said_gain"], each["real_gain"]) for each in results if each["real_gain"]]
    inside = sum(said[0] <= real[1] and real[0] <= said[1] for said, real in gains)
    print(
        f"{len(results)} scripts, {sum(each['verdict'] == 'undecided' for each in results)}"
        f" undecided, {sum(each['wrong'] for each in results)} wrong,"
        f" {sum(each['unsafe'] for each in results)} unsafe first; median error of the stall"
        f" {statistics.median(off or [0.0]):.1f} points; {inside} of {len(gains)} gains agree with"
        " their interval"
    )


if __name__ == "__main__":
    main()
