"""Our configurations beside other libraries' loaders: photos → 224×224 uint8, batches of 64.

    python -m venv DIR && DIR/bin/pip install -r benchmarks/peers-requirements.txt
    python -m benchmarks.peers --photos PHOTOS --python DIR/bin/python --json FILE

All use all cores and take turns in one run, each in its own processes. A library that cannot be
imported is left out, with a message.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import data
from benchmarks.command_line import data_command_line, open_work, write_results
from benchmarks.input_pipelines import start_workers, take_turns

OURS = ("naive", "map_parallel", "heuristic", "unordered", "fast_decode", "snapshot", "optimized")
THEIRS = ("torch_pil", "torch_opencv", "webdataset", "grain", "spdl", "dali")
SIZE = 224


def main() -> None:
    parser = data_command_line("peers", __doc__, photos_required=True)
    parser.add_argument(
        "--python",
        type=Path,
        required=True,
        metavar="FILE",
        help="interpreter of the peers' environment",
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    options = parser.parse_args()
    with open_work(options.work) as work:
        theirs = Theirs(python=options.python, photos=options.photos, work=work, size=SIZE)
        rates = run_all(data.photos(options.photos, work), theirs, options.rounds)
    base = statistics.median(rates["naive"])
    results = {
        name: {
            "examples_per_s": round(statistics.median(values), 1),
            "ratio": round(statistics.median(values) / base, 3),
        }
        for name, values in rates.items()
    }
    for name, row in sorted(results.items(), key=lambda item: -item[1]["examples_per_s"]):
        print(
            f"{name:<24}{row['examples_per_s']:>12,.0f}{row['ratio']:>10.2f}"
            f"{'  ours' if name in OURS else ''}"
        )
    write_results(options.json, results)


@dataclass(frozen=True, kw_only=True)
class Theirs:
    """The interpreter of other libraries, and the photos that they load as squares of `size`."""

    python: Path
    photos: Path
    work: Path
    size: int

    def command(self, name: str) -> list[str]:
        script = str(Path(__file__).parent / "peer_loaders.py")
        places = ["--photos", str(self.photos), "--work", str(self.work)]
        return [str(self.python), script, name, *places, "--size", str(self.size)]


def run_all(workload: data.Workload, theirs: Theirs, rounds: int) -> dict[str, list[float]]:
    """Return the images per second of every loader, round by round."""
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        pipes = start_workers(workload, list(OURS), stack)
        for pipe in pipes.values():
            pipe.recv()
        started = {name: start_peer(theirs.command(name), stack) for name in THEIRS}
        for _ in range(rounds):
            turns = take_turns(pipes)
            for name, process in list(started.items()):
                answer = query_rate(process)
                if answer is None:
                    print(
                        f"{name}: left out, its process ended with code {process.wait()}",
                        file=sys.stderr,
                    )
                    del started[name]
                    continue
                turns[name] = answer
            for name, rate in turns.items():
                rates.setdefault(name, []).append(rate)
    return rates


def start_peer(command: list[str], stack: ExitStack) -> subprocess.Popen[str]:
    """Start a peer, which is killed at the end of the stack's block."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    stack.callback(process.kill)
    return process


def query_rate(process: subprocess.Popen[str]) -> float | None:
    """Let a peer take a turn; return its rate, or None if it is gone."""
    if process.stdin is None or process.stdout is None or process.poll() is not None:
        return None
    try:
        process.stdin.write("turn\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    line = process.stdout.readline()
    return float(line) if line else None


if __name__ == "__main__":
    main()
