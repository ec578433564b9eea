"""Trainings as people write them, under `whowaits`: is the verdict true, is the stall, and does
what is advised first leave the training as it is?

    python -m benchmarks.whowaits --results FILE [--python FILE] [--only WORD] [--rounds 2]

Every case is a script. Its truth is measured apart: the script by itself, as it is and with its
first batches kept in memory, in alternation, from its second epoch on. `--python` names an
interpreter that has what the cases need (TensorFlow; PyTorch, JAX and tf_keras for some). Finished
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

LIMIT_S = 240.0
CLOSE_PCT = 5.0  # points by which an interval may miss the truth, which has one, too


def main() -> None:
    """Run the cases that are not in the file of results yet, and print a table of all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="", metavar="WORD", help="cases with it in their name")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    results = _read(options.results)
    for name, case in CASES.items():
        if options.only in name and name not in results:
            results[name] = judge(name, case, python=options.python, rounds=options.rounds)
            with options.results.open("a") as file:
                file.write(json.dumps(results[name]) + "\n")
            print(row(results[name]), flush=True)
    print("\n".join(map(row, results.values())))
    print(summary(list(results.values())))


def _read(path: Path) -> dict[str, dict]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {result["name"]: result for result in map(json.loads, lines)}


def judge(name: str, case: Case, *, python: str, rounds: int) -> dict:
    """What is said of a script, and what is true."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(case.text)
        began = time.perf_counter()
        said = _run([sys.executable, "-m", "whowaits", "--python", python, "--json", str(script)])
        seconds = time.perf_counter() - began
        report = json.loads(said.stdout) if said.stdout.startswith("{") else {"verdict": "CRASH"}
        steps = [
            [_step_ms(python, script, memory=memory) for memory in (False, True)]
            for _ in range(rounds)
        ]
    true = statistics.median(100 * (1 - memory / as_it_is) for as_it_is, memory in steps)
    first = _first(report)
    return {
        "name": name,
        "verdict": report["verdict"],
        "stall_pct": report.get("stall_pct"),
        "low": report.get("stall_low_pct"),
        "high": report.get("stall_high_pct"),
        "true_pct": round(true, 1),
        "true_range": [
            round(pick(100 * (1 - memory / as_it_is) for as_it_is, memory in steps), 1)
            for pick in (min, max)
        ],
        "step_ms": report.get("step_ms"),
        "true_step_ms": round(statistics.median(each[0] for each in steps), 2),
        "model_ms": report.get("model_ms"),
        "true_model_ms": round(statistics.median(each[1] for each in steps), 2),
        "first": first,
        "unsafe": any(first.startswith(kind) for kind in case.freezes),
        "others_pct": report.get("others_pct"),
        "reason": report.get("reason", said.stderr[-300:]),
        "seconds": round(seconds, 1),
        "measured_s": report.get("seconds"),
    }


def _first(report: dict) -> str:
    """What is advised first, "" for nothing."""
    from whowaits.advice import Tried, find_first

    found = find_first([Tried(**each) for each in report.get("changes", ())])
    return found.text if found else ""


def _step_ms(python: str, script: Path, *, memory: bool) -> float:
    done = _run([python, str(script)], FROM_MEMORY="1" if memory else "")
    found = re.search(r"^STEP ([\d.]+)", done.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{script} has not trained: {done.stderr[-2000:]}")
    return float(found[1])


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
    """Whether a verdict was given that all of the truth contradicts, by more than its noise."""
    low, high = result["true_range"]
    if result["verdict"] == "input-bound":
        return high < 20 - CLOSE_PCT
    if result["verdict"] == "compute-bound":
        return low > 15 + CLOSE_PCT
    return result["verdict"] == "CRASH"


def row(result: dict) -> str:
    """A line of the table."""
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
    """How many verdicts were given, and how far the stalls are off."""
    decided = [each for each in results if each["verdict"] not in ("undecided", "CRASH")]
    both = [each for each in results if each["stall_pct"] is not None and each["high"] is not None]
    off = [abs(each["stall_pct"] - max(0.0, each["true_pct"])) for each in both]
    median = f"{statistics.median(off):.1f} points" if off else "none"
    return (
        f"{len(results)} scripts, {len(decided)} decided, {sum(map(is_wrong, results))} wrong,"
        f" {sum(each['unsafe'] for each in results)} unsafe first; median error of the stall"
        f" {median}"
    )


if __name__ == "__main__":
    main()
