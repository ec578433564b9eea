"""What measuring costs a training outside the traced window, compared with Keras' bare `fit`.

    python -m benchmarks.overhead

Trains the same model on the same mapped pipeline of Fashion-MNIST in alternating epochs: without
callbacks, and with all that the train stage has on (step timer, rows, process and NVML sampling,
MLflow's metrics and system metrics). Both validate; no checkpoint is written. The median ratio of
pairs counts.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import data
from benchmarks.command_line import command_line


@contextmanager
def epochs(
    workload: data.Workload, folder: Path
) -> Iterator[tuple[Callable[[], float], Callable[[], float]]]:
    """Yield two functions that train an epoch and return its seconds: bare, and measured."""
    import mlflow

    from throughline.assembly.inputs import open_input_pipeline, open_inputs
    from throughline.assembly.model import build_models_for
    from throughline.config.params import check
    from throughline.measurement.hardware import UsageMonitor
    from throughline.tracking.recorder import Recorder, RunKey
    from throughline.training.checkpoint_store import CheckpointStore
    from throughline.training.checkpoints import CheckpointCallback
    from throughline.training.fit import Schedule, SplitEvaluation, fit
    from throughline.training.step_function import StepFunction
    from throughline.training.step_model import Feed, make_step_model

    config = {
        "read": "snapshot",
        "shuffle": {"kind": "global"},
        "map": {"parallel": "cores"},
        "prefetch": 2,
    }
    train = {"epochs": 1000, "schedule": "constant", "checkpoint_every": "1000 epochs"}
    params = check({**workload.document, "pipelines": {"snapshot": config}, "train": train})
    data = open_inputs(params, workload.layout)
    pipeline = open_input_pipeline(params, "snapshot", data, split="train", purpose="train")
    validation = open_input_pipeline(
        params, "snapshot", data, split="validation", purpose="evaluate"
    )
    models = build_models_for(params, data)
    model = make_step_model(models, params.train, Feed.of(pipeline, params.train))
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    recorder = Recorder(RunKey(dataset="overhead", pipeline="snapshot", data_digest=""))
    progress = CheckpointCallback(
        pipeline, CheckpointStore(folder / "checkpoint", {}), params.train, recorder
    )
    train_function = StepFunction(model)
    evaluation = SplitEvaluation(model, validation.dataset(), validation.steps_per_epoch)
    schedule = Schedule(steps_per_epoch=pipeline.steps_per_epoch, epochs=1)

    def epoch(callbacks: list) -> float:
        began = time.perf_counter()
        fit(
            train_function, pipeline.dataset(), schedule, evaluation=evaluation, callbacks=callbacks
        )
        return time.perf_counter() - began

    def measured() -> float:
        with UsageMonitor(paused=True) as monitor:
            progress.attach(train_function, monitor)
            return epoch([progress])

    with recorder:
        yield lambda: epoch([]), measured


def main() -> None:
    parser = command_line("overhead", __doc__, results=False)
    parser.add_argument("--pairs", type=int, default=15, help="epochs of each kind")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ratios = []
        with epochs(data.fashion_mnist(Path(folder)), Path(folder)) as (bare, measured):
            for warm_up in (bare, measured):
                warm_up()
            for number in range(options.pairs):
                first, second = (bare, measured) if number % 2 else (measured, bare)
                times = {first: first(), second: second()}
                ratios.append(times[measured] / times[bare])
    low, middle, high = (100 * (ratio - 1) for ratio in statistics.quantiles(ratios, n=4))
    print(
        f"a measured epoch takes {middle:+.1f} % longer than a bare one (quartiles {low:+.1f} to"
        f" {high:+.1f} %)"
    )


if __name__ == "__main__":
    main()
