"""Does every epoch have each example exactly once, and every step the right batch, if trainings are
killed at random and resumed with another number of processes?

    python -m benchmarks.storm --trials 100 --work DIR [--json FILE]

A trial draws a configuration (shuffle, where the split is, steps per execution, checkpoints) and
trains it undisturbed in one process. It then trains again with 1, 2 or 4 processes, kills one of
them at a random step, and resumes with 1, 2 or 4 processes, up to five times. The model notes each
process's examples of every step. Continues after the last trial in --work, and uses the train stage
unchanged.

    python -m benchmarks.storm --rows 100000000 --work DIR

times the first batch after a resume within an epoch, for so many rows in sparse files and for the
few rows of the trials.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import command_line, write_results
from flows.run.fork_server import stage_server
from tests.support.project import SMALL, environment, make_project, run_stages, write_params
from throughline.plan.training_workers import TrainingWorker
from throughline.results.build import PlanSummary
from throughline.shared.fork_client import READY, STAGE_SERVER

EXAMPLES, SIDE, BATCH, EPOCHS = 200, 8, 16, 3
COUNTS, MULTIPLE, MOST_KILLS = (1, 2, 4), 4, 5
LONGEST_S, REPEATS = 600.0, 5
CLOSE = 1e-5  # relative, for losses
NAME = "optimized"
OWN_CODE = '''
import hashlib, json, os, pathlib, signal

import keras
import tensorflow as tf

CONFIG = json.loads(os.environ.get("TF_CONFIG") or "{}")
INDEX = CONFIG["task"]["index"] if CONFIG else 0
COUNT = len(CONFIG["cluster"]["worker"]) if CONFIG else 1


def note(step, images):
    """Write down a step with its examples: which ones, and how augmented."""
    ids = [int(image[0, 0, 0]) * 256 + int(image[1, 0, 0]) for image in images]
    digests = [hashlib.blake2b(image.tobytes(), digest_size=8).hexdigest() for image in images]
    line = json.dumps([int(step), INDEX, COUNT, ids, digests])
    with open(f"noted-{INDEX}.jsonl", "a") as file:
        file.write(line + "\\n")
    return step


class Noting(keras.Model):
    def train_step(self, data):
        step = tf.numpy_function(note, [self.optimizer.iterations.value, data[0]], tf.int64)
        with tf.control_dependencies([step]):
            return super().train_step(data)


class Kill(keras.callbacks.Callback):
    """Kills the process of an index after so many executions: KILL="index executions"."""

    def __init__(self):
        super().__init__()
        self.executions = 0

    def on_train_batch_end(self, batch, logs=None):
        self.executions += 1
        index, executions = map(int, os.environ.get("KILL", "-1 0").split())
        if index == INDEX and executions == self.executions:
            os.kill(os.getpid(), signal.SIGKILL)


def noting(input_shape, outputs):
    inputs = keras.Input(input_shape)
    hidden = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    hidden = keras.layers.Dense(8, "relu")(hidden)
    return Noting(inputs, keras.layers.Dense(outputs)(hidden))
'''


def make_examples(path: Path) -> None:
    """Write images whose first two rows are their number, flipped or not."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (EXAMPLES, SIDE, SIDE, 1), np.uint8)
    high, low = np.divmod(np.arange(EXAMPLES), 256)
    images[:, 0], images[:, 1] = high[:, None, None], low[:, None, None]
    np.savez(path, x=images, y=np.arange(EXAMPLES) % 3)


def draw_configuration(draw: random.Random) -> dict[str, Any]:
    params = copy.deepcopy(SMALL)
    params["batch_size"], params["postprocess"] = BATCH, []
    params["model"] = {"name": "own:noting"}
    pipeline = params["pipelines"][NAME]
    pipeline["shuffle"] = draw.choice([{"kind": "global"}, {"kind": "window", "size": 48}])
    pipeline["snapshot_on"] = draw.choice(["host", "device"])
    if pipeline["snapshot_on"] == "device":
        pipeline["prefetch"] = "none"
    params["train"] |= {
        "epochs": EPOCHS,
        "batch_multiple": MULTIPLE,
        "callbacks": ["own:Kill"],
        "seed": draw.randrange(1000),
        "steps_per_execution": draw.choice([1, 1, 3]),
        "checkpoint_every": draw.choice(["1 steps", "2 steps", "3 steps", "1 epoch"]),
    }
    return params


class Trainings:
    """A prepared project in which trainings run one after another."""

    def __init__(self, folder: Path, served: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, {**environment(folder), **served}

    def train(self, params: dict[str, Any], *, processes: int, kill: str) -> int:
        params["train"]["processes"] = processes
        write_params(self.folder, params)
        done = subprocess.run(
            [sys.executable, "-m", "tasks.train", "--pipeline", NAME],
            cwd=self.folder,
            env={**self.environment, "KILL": kill},
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        if kill == "-1 0" and done.returncode:
            raise RuntimeError(f"a training that nobody killed ended:\n{done.stdout}{done.stderr}")
        return done.returncode

    def take_notes(self) -> dict[int, list[tuple[list[int], list[str]]]]:
        """Return each step's examples and digests, once for each run of it, and forget them."""
        parts: dict[int, dict[int, list[tuple[int, list[int], list[str]]]]] = {}
        for path in sorted(self.folder.glob("noted-*.jsonl")):
            for line in path.read_text().splitlines():
                step, index, count, ids, digests = json.loads(line)
                parts.setdefault(step, {}).setdefault(index, []).append((count, ids, digests))
            path.unlink()
        joined: dict[int, list[tuple[list[int], list[str]]]] = {}
        for step, by_index in parts.items():
            for count in COUNTS:
                slices = [
                    [one for one in by_index.get(i, []) if one[0] == count] for i in range(count)
                ]
                # Only some processes may have noted a step that a kill interrupted.
                for whole in zip(*slices, strict=False):
                    ids = [number for _, part, _ in whole for number in part]
                    digests = [digest for _, _, part in whole for digest in part]
                    joined.setdefault(step, []).append((ids, digests))
        return joined

    @property
    def examples(self) -> int:
        """Examples of an epoch: those of the split that fill batches of a multiple of 4."""
        count = PlanSummary.read(self.folder / "runs" / NAME).examples
        return TrainingWorker(batch_multiple=MULTIPLE).shared(count, BATCH)

    @property
    def losses(self) -> list[float]:
        lines = (self.folder / "runs" / NAME / "history.csv").read_text().splitlines()
        column = lines[0].split(",").index("train_loss")
        return [float(line.split(",")[column]) for line in lines[1:]]


def run_trial(trainings: Trainings, number: int) -> dict[str, Any]:
    """Run a trial; return what was drawn, its kills and resumes, and what differed."""
    draw = random.Random(number)
    params = draw_configuration(draw)
    trainings.train(params, processes=1, kill="-1 0")
    expected, losses = trainings.take_notes(), trainings.losses
    counts, kills = [draw.choice(COUNTS)], 0
    for _ in range(draw.randint(1, MOST_KILLS)):
        kill = f"{draw.randrange(counts[-1])} {draw.randint(1, 10)}"
        if trainings.train(params, processes=counts[-1], kill=kill) == 0:
            break  # complete before that step
        kills += 1
        counts.append(draw.choice(COUNTS))
    else:
        trainings.train(params, processes=counts[-1], kill="-1 0")
    seen = trainings.take_notes()
    per_epoch = len(expected) // EPOCHS
    problems = [
        f"step {step} had another batch"
        for step, batches in sorted(seen.items())
        if any(batch != expected[step][0] for batch in batches)
    ]
    problems += [f"step {step} was never run" for step in expected if step not in seen]
    for epoch in range(EPOCHS):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        ids = [number for step in steps for number in seen.get(step, [([], [])])[-1][0]]
        if not len(ids) == len({*ids}) == trainings.examples:
            problems.append(f"epoch {epoch} had {len(ids)} examples, {len({*ids})} different ones")
    if not np.allclose(trainings.losses, losses, rtol=CLOSE, atol=0):
        problems.append(f"losses are {trainings.losses}, not {losses}")
    repeated = sum(len(batches) - 1 for batches in seen.values())
    drawn = {
        "shuffle": params["pipelines"][NAME]["shuffle"]["kind"],
        "snapshot_on": params["pipelines"][NAME]["snapshot_on"],
        **{key: params["train"][key] for key in ("steps_per_execution", "checkpoint_every")},
    }
    return {
        "trial": number,
        **drawn,
        "processes": counts,
        "kills": kills,
        "steps": len(seen),
        "repeated_steps": repeated,
        "problems": problems,
    }


@contextlib.contextmanager
def open_trainings(work: Path, *, served: bool = True) -> Iterator[Trainings]:
    """Open the prepared project below `work`, made if missing; `served` uses a stage server."""
    folder = work / "project"
    if not folder.exists():
        work.mkdir(parents=True, exist_ok=True)
        make_examples(work / "data.npz")
        make_project(folder, work / "data.npz", SMALL)
        (folder / "own.py").write_text(OWN_CODE)
        run_stages(folder, "ingest", "shard", "snapshot", f"build@{NAME}")
    if not served:
        yield Trainings(folder, {})
        return
    with stage_server(folder, environment(folder)) as variables:
        deadline = time.monotonic() + LONGEST_S
        while not Path(variables[STAGE_SERVER] + READY).exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield Trainings(folder, variables)


def make_many(source: Path, data: Path, rows: int) -> None:
    """Copy prepared data with a training split of so many rows, in sparse files."""
    shutil.copytree(source, data)
    shards, snapshot = data / "shards" / "index.json", data / "snapshot" / "index.json"
    index, columns = json.loads(shards.read_text()), json.loads(snapshot.read_text())
    mine = [shard for shard in index["shards"] if shard["split"] == "train"]
    mine[0]["records"] = rows - sum(shard["records"] for shard in mine[1:])
    shards.write_text(json.dumps(index))
    train = columns["splits"]["train"]
    train["chunks"][-1]["count"] += rows - train["count"]
    train["count"] = rows
    snapshot.write_text(json.dumps(columns))
    for column in columns["columns"]:
        size = rows * math.prod(column["shape"]) * np.dtype(column["dtype"]).itemsize
        os.truncate(data / "snapshot" / "train" / f"{column['name']}.bin", size)


def time_first_batch(root: Path) -> tuple[float, float]:
    """Return seconds to a batch in mid-epoch, and of them the main thread's CPU seconds."""
    from throughline.assembly.inputs import open_input_pipeline, open_inputs
    from throughline.config.params import check
    from throughline.shared.layout import Layout

    params = check({**SMALL, "data": SMALL["data"] | {"path": str(root / "none.npz")}})
    started, worked = time.perf_counter(), time.thread_time()
    data = open_inputs(params, Layout(root))
    pipeline = open_input_pipeline(params, NAME, data, split="train", purpose="train")
    next(iter(pipeline.dataset(first_step=pipeline.steps_per_epoch // 2, epochs=2)))
    return time.perf_counter() - started, time.thread_time() - worked


def main() -> None:
    parser = command_line("storm", __doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rows", type=int, metavar="N", help="time the first batch of so many")
    options = parser.parse_args()
    if options.rows:
        many = options.work.absolute() / f"rows-{options.rows}"
        with open_trainings(options.work.absolute(), served=False) as trainings:
            if not many.exists():
                make_many(trainings.folder / "data", many / "data", options.rows)
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            for root in (many, trainings.folder):
                times = [pool.apply(time_first_batch, (root,)) for _ in range(REPEATS)]
                for what, each in zip(
                    ("all", "main thread"), zip(*times, strict=True), strict=True
                ):
                    print(f"{root.name}, {what}:", *(f"{one:.2f} s" for one in sorted(each)))
        return
    results = options.work / "trials.jsonl"
    options.work.mkdir(parents=True, exist_ok=True)
    done = (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )
    with open_trainings(options.work.absolute()) as trainings:
        for number in range(len(done), options.trials):
            trial = run_trial(trainings, number)
            done.append(trial)
            with results.open("a") as file:
                file.write(json.dumps(trial) + "\n")
            print(json.dumps(trial), flush=True)
    bad = [trial for trial in done if trial["problems"]]
    kills = sum(trial["kills"] for trial in done)
    print(f"{len(done) - len(bad)} of {len(done)} trials as if nothing had happened, {kills} kills")
    write_results(options.json, done)
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
