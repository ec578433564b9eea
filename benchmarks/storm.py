"""Does every epoch have each example exactly once, and every step the right batch, if trainings are
killed at random and resumed with another number of processes?

    python -m benchmarks.storm [--trials 100]

A trial draws a configuration (shuffle, where the split is, steps per execution, checkpoints) and
trains it undisturbed in one process, then with 1, 2 or 4 processes, of which one is killed at a
random step, resumed with 1, 2 or 4, up to five times. The model notes each process's examples of
every step. Uses the train stage unchanged.
"""

import csv
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import command_line, run_cases
from flows.run.fork_server import stage_server
from tests.support.project import SMALL, environment, make_project, run_stages, start, write_params
from throughline.plan.training_workers import TrainingWorker
from throughline.results.build import PlanSummary

EXAMPLES, SIDE, BATCH, EPOCHS = 200, 8, 16, 3
COUNTS, MULTIPLE, MOST_KILLS = (1, 2, 4), 4, 5
LONGEST_S, CLOSE = 600.0, 1e-5  # the second is relative, for losses
NAME, NO_KILL = "optimized", "-1 0"
OWN_CODE = """
import hashlib, json, os, signal

import keras
import tensorflow as tf

ALONE = '{"task": {"index": 0}, "cluster": {"worker": [0]}}'
CONFIG = json.loads(os.environ.get("TF_CONFIG") or ALONE)
INDEX, COUNT = CONFIG["task"]["index"], len(CONFIG["cluster"]["worker"])

def note(step, images):
    examples = [[int(image[0, 0, 0]), hashlib.md5(image.tobytes()).hexdigest()] for image in images]
    line = json.dumps([int(step), INDEX, COUNT, examples])
    with open(f"noted-{INDEX}.jsonl", "a") as file:
        file.write(line + "\\n")
    return step

class Noting(keras.Model):
    def train_step(self, data):
        step = tf.numpy_function(note, [self.optimizer.iterations.value, data[0]], tf.int64)
        with tf.control_dependencies([step]):
            return super().train_step(data)

class Kill(keras.callbacks.Callback):
    executions = 0  # KILL="index executions" kills the process of an index after so many

    def on_train_batch_end(self, batch, logs=None):
        self.executions += 1
        index, executions = map(int, os.environ.get("KILL", "-1 0").split())
        if index == INDEX and executions == self.executions:
            os.kill(os.getpid(), signal.SIGKILL)

def noting(input_shape, outputs):
    inputs = keras.Input(input_shape)
    hidden = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    return Noting(inputs, keras.layers.Dense(outputs)(hidden))
"""


def make_trainings(work: Path) -> Path:
    """Prepare a project of images whose first row holds their number, also when flipped."""
    folder = work / "storm" / "project"
    if not folder.exists():
        images = np.random.default_rng(0).integers(0, 256, (EXAMPLES, SIDE, SIDE, 1), np.uint8)
        images[:, 0] = np.arange(EXAMPLES)[:, None, None]
        folder.parent.mkdir(parents=True)
        archive = folder.with_name("data.npz")
        np.savez(archive, x=images, y=np.arange(EXAMPLES) % 3)
        make_project(folder, archive, SMALL)
        (folder / "own.py").write_text(OWN_CODE)
        run_stages(folder, "ingest", "shard", "snapshot", f"build@{NAME}")
    return folder


def draw_configuration(draw: random.Random) -> dict[str, Any]:
    pipeline = {
        "read": "snapshot",
        "shuffle": draw.choice([{"kind": "global"}, {"kind": "window", "size": 48}]),
        **draw.choice([{"snapshot_on": "device"}, {"snapshot_on": "host", "prefetch": 2}]),
    }
    train = {
        "epochs": EPOCHS,
        "batch_multiple": MULTIPLE,
        "callbacks": ["own:Kill"],
        "seed": draw.randrange(1000),
        "steps_per_execution": draw.choice([1, 1, 3]),
        "checkpoint_every": draw.choice(["1 steps", "2 steps", "3 steps", "1 epoch"]),
    }
    own = {"batch_size": BATCH, "postprocess": [], "model": {"name": "own:noting"}}
    return {**SMALL, **own, "pipelines": {NAME: pipeline}, "train": SMALL["train"] | train}


Batch = list[list[int | str]]  # which examples, and a digest of each


@dataclass(frozen=True)
class Trainings:
    folder: Path
    served: Mapping[str, str]

    def train(self, params: dict[str, Any], *, processes: int, kill: str = NO_KILL) -> bool:
        params["train"]["processes"] = processes
        write_params(self.folder, params)
        command = (sys.executable, "-m", "tasks.train", "--pipeline", NAME)
        with start(self.folder, *command, shared={**self.served, "KILL": kill}) as process:
            output, _ = process.communicate(timeout=LONGEST_S)
        if kill == NO_KILL and process.returncode:
            raise RuntimeError(f"a training failed that was not killed:\n{output}")
        return process.returncode == 0

    def take_notes(self) -> list[tuple[int, int, int, Batch]]:
        """Return and delete the notes: step, process, number of processes, its examples."""
        paths = list(self.folder.glob("noted-*.jsonl"))
        notes = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        for path in paths:
            path.unlink()
        return notes

    @property
    def losses(self) -> list[float]:
        lines = (self.folder / "runs" / NAME / "history.csv").read_text().splitlines()
        return [float(row["train_loss"]) for row in csv.DictReader(lines)]

    def run_trial(self, number: str) -> dict[str, Any]:
        draw = random.Random(int(number))
        params = draw_configuration(draw)
        self.train(params, processes=1)
        batches = {step: batch for step, _, _, batch in self.take_notes()}
        losses, counts, kills = self.losses, [draw.choice(COUNTS)], draw.randint(1, MOST_KILLS)
        while len(counts) <= kills:
            kill = f"{draw.randrange(counts[-1])} {draw.randint(1, 10)}"
            if self.train(params, processes=counts[-1], kill=kill):
                break  # complete before that step
            counts.append(draw.choice(COUNTS))
        else:
            self.train(params, processes=counts[-1])
        problems = [*self.check_epochs(batches), *self.check_steps(batches)]
        if not np.allclose(self.losses, losses, rtol=CLOSE, atol=0):
            problems.append(f"losses are {self.losses}, not {losses}")
        return {"processes": counts, "problems": problems, "train": params["train"]}

    def check_epochs(self, batches: Mapping[int, Batch]) -> list[str]:
        """Return a problem unless each undisturbed epoch has each of its examples exactly once."""
        count = PlanSummary.read(self.folder / "runs" / NAME).examples
        expected = TrainingWorker(batch_multiple=MULTIPLE).shared(count, BATCH)
        ids = [number for _, batch in sorted(batches.items()) for number, _ in batch]
        epochs = [ids[begin : begin + expected] for begin in range(0, len(ids), expected)]
        whole = len(epochs) == EPOCHS and all(len({*epoch}) == expected for epoch in epochs)
        return [] if whole else [f"{len(ids)} examples are not {EPOCHS} epochs of {expected}"]

    def check_steps(self, batches: Mapping[int, Batch]) -> list[str]:
        """Return which steps had other batches than if undisturbed, or lack a process's notes."""
        problems, seen = [], {step: set[tuple[int, int]]() for step in batches}
        for step, index, count, mine in self.take_notes():
            batch = batches.get(step, [])
            share = len(batch) // count
            if not mine or mine != batch[index * share : (index + 1) * share]:
                problems.append(f"step {step} had another batch in process {index}")
            else:
                seen[step].add((count, index))
        wholes = [{(count, index) for index in range(count)} for count in COUNTS]
        return problems + [
            f"step {step} was never complete"
            for step, parts in seen.items()
            if not any(whole <= parts for whole in wholes)
        ]


def main() -> None:
    parser = command_line("storm", __doc__)
    parser.add_argument("--trials", type=int, default=100)
    options = parser.parse_args()
    folder = make_trainings(options.work)
    numbers = [*map(str, range(options.trials))]
    with stage_server(folder, environment(folder)) as served:
        done = run_cases(options.work / "storm.jsonl", numbers, Trainings(folder, served).run_trial)
    good = [trial for trial in done if not trial["problems"]]
    kills = sum(len(trial["processes"]) - 1 for trial in done)
    print(f"{len(good)} of {len(done)} trials as if nothing had happened, {kills} kills")
    raise SystemExit(len(good) < len(done))


if __name__ == "__main__":
    main()
