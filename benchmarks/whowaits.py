"""Are verdict, stall and first advice of `whowaits` right, on trainings as people write them?

    python -m benchmarks.whowaits --results FILE [--python FILE] [--only WORD]

Every case is a script. Its true stall is measured apart: the script trains on real batches and on
batches from memory in alternating epochs, and the median of pairs counts. The true gain of the
advised change is measured by epochs of the script with and without it. `--python` names an
interpreter with what the cases need (TensorFlow; PyTorch, JAX and tf_keras for some). Finished
cases are kept in FILE, one JSON object a line, and not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.guest_scripts import CASES, Case
from whowaits.changes.advice import Edit, Tried, find_first
from whowaits.changes.edits import CannotBeWritten, edit_source
from whowaits.timing.rounds import median_interval

LIMIT_S = 240.0
CLOSE_GAIN = 0.25  # of the real gain
FEWEST_PAIRS = 5
CLOSE_PCT = 5.0  # points by which an interval may miss the truth, which has one, too


def main() -> None:
    """Run the cases that are not in the file of results yet, and print a table of all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="", metavar="WORD", help="cases with it in their name")
    options = parser.parse_args()
    results = _read(options.results)
    for name, case in CASES.items():
        if options.only in name and name not in results:
            results[name] = judge(name, case, python=options.python)
            with options.results.open("a") as file:
                file.write(json.dumps(results[name]) + "\n")
            print(row(results[name]), flush=True)
    print("\n".join(map(row, results.values())))
    print(summary(list(results.values())))


def _read(path: Path) -> dict[str, dict]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {result["name"]: result for result in map(json.loads, lines)}


def judge(name: str, case: Case, *, python: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(case.text)
        began = time.perf_counter()
        said = _run([sys.executable, "-m", "whowaits", "--python", python, "--json", str(script)])
        seconds = time.perf_counter() - began
        report = json.loads(said.stdout) if said.stdout.startswith("{") else {"verdict": "CRASH"}
        pairs = _pairs(python, script)
        step_ms = statistics.median(as_it_is for as_it_is, _ in pairs)
        gains = [
            {
                "change": change.text,
                "predicted": change.gain,
                "low": change.low,
                "high": change.high,
                "real": step_ms / edited_ms,
            }
            for change in _first_or_best(report)
            if (edited_ms := _edited_step_ms(python, script, change)) is not None
        ]
    stalls = [100 * (1 - memory / as_it_is) for as_it_is, memory in pairs]
    first = _first(report)
    return {
        "name": name,
        "verdict": report["verdict"],
        "stall_pct": report.get("stall_pct"),
        "low": report.get("stall_low_pct"),
        "high": report.get("stall_high_pct"),
        "true_pct": round(statistics.median(stalls), 1),
        "true_range": [round(end, 1) for end in median_interval(stalls)],
        "step_ms": report.get("step_ms"),
        "true_step_ms": round(step_ms, 2),
        "model_ms": report.get("model_ms"),
        "true_model_ms": round(statistics.median(each[1] for each in pairs), 2),
        "first": first,
        "unsafe": any(first.startswith(kind) for kind in case.freezes),
        "others_pct": report.get("others_pct"),
        "reason": report.get("reason", said.stderr[-300:]),
        "seconds": round(seconds, 1),
        "measured_s": report.get("seconds"),
        "gains": gains,
    }


def _tried(report: dict) -> list[Tried]:
    return [
        Tried(**{**each, "edits": tuple(Edit(**edit) for edit in each["edits"])})
        for each in report.get("changes", ())
    ]


def _first_or_best(report: dict) -> list[Tried]:
    """Return the change that is advised first, or else the one that gained most, if any."""
    tried = _tried(report)
    return [find_first(tried) or max(tried, key=lambda each: each.gain)] if tried else []


def _first(report: dict) -> str:
    found = find_first(_tried(report))
    return found.text if found else ""


def _edited_step_ms(python: str, script: Path, change: Tried) -> float | None:
    """Return the milliseconds of a step of the changed script, or None if it cannot be written."""
    try:
        source = edit_source(script.read_bytes(), str(script), change.edits)
    except CannotBeWritten:
        return None
    edited = script.with_name("edited.py")
    edited.write_bytes(source)
    return statistics.median(as_it_is for as_it_is, _ in _pairs(python, edited))


def _pairs(python: str, script: Path) -> list[tuple[float, float]]:
    """Return pairs of step times [ms], on real batches and from memory, in alternating epochs."""
    done = _run([python, str(script)], TRUTH="1")
    found = re.findall(r"^PAIR ([\d.]+) ([\d.]+)", done.stdout, re.MULTILINE)
    if len(found) < FEWEST_PAIRS:
        raise RuntimeError(f"{script} has not trained: {done.stderr[-2000:]}")
    return [(float(as_it_is), float(memory)) for as_it_is, memory in found]


def _run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
    )


def is_wrong(result: dict) -> bool:
    """Return whether the truth contradicts a verdict by more than its noise."""
    low, high = result["true_range"]
    if result["verdict"] == "input-bound":
        return high < 20 - CLOSE_PCT
    if result["verdict"] == "compute-bound":
        return low > 15 + CLOSE_PCT
    return result["verdict"] == "CRASH"


def row(result: dict) -> str:
    stall, high = result["stall_pct"], result["high"]
    said = "" if stall is None else f"{stall:.0f} %"
    span = "" if high is None or stall is None else f" ({result['low']:.0f} to {high:.0f})"
    wrong = " WRONG" if is_wrong(result) else ""
    unsafe = " UNSAFE" if result["unsafe"] else ""
    true = "{:.0f} to {:.0f} %".format(*result["true_range"])
    return (
        f"| {result['name']} | {result['verdict']}{wrong} | {said}{span} | {true} |"
        f" {result['first'] or 'nothing'}{unsafe} | {result['measured_s']} |"
    )


def summary(results: list[dict]) -> str:
    decided = [each for each in results if each["verdict"] not in ("undecided", "CRASH")]
    both = [each for each in results if each["stall_pct"] is not None and each["high"] is not None]
    off = [abs(each["stall_pct"] - max(0.0, each["true_pct"])) for each in both]
    median = f"{statistics.median(off):.1f} points" if off else "none"
    return (
        f"{len(results)} scripts, {len(decided)} decided, {sum(map(is_wrong, results))} wrong,"
        f" {sum(each['unsafe'] for each in results)} unsafe first; median error of the stall"
        f" {median}; {_judge_gains(results)}"
    )


def _judge_gains(results: list[dict]) -> str:
    ratios = [one["predicted"] / one["real"] for each in results for one in each.get("gains", ())]
    close = sum(abs(ratio - 1) <= CLOSE_GAIN for ratio in ratios)
    return f"{close} of {len(ratios)} predicted gains within {CLOSE_GAIN:.0%} of the real one"


if __name__ == "__main__":
    main()
