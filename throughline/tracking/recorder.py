"""Records runs in MLflow: one per configuration, a child of its comparison.

No training depends on the server: every number is in the files of runs/NAME before it is sent. If
the server cannot be reached, one line says so, and `python -m tasks.sync` sends the rest later.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import mlflow
import numpy as np
from mlflow.data.numpy_dataset import from_numpy
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from throughline.results.train import RunRecord
from throughline.shared.errors import DamagedFile, MissingInput, UserError
from throughline.shared.failures import disk_reason
from throughline.shared.layout import from_here
from throughline.shared.progress import echo, echo_problem
from throughline.tracking.calls import (
    PendingRun,
    attachments_dir,
    enqueue,
    list_models,
    list_pending,
    name_params,
    remove,
    send,
)
from throughline.tracking.experiments import RunKey, get_experiment_id
from throughline.tracking.lineage import EXPERIMENT_TAG, PARENT_TAG, read_lineage, read_parent
from throughline.tracking.store import (
    ADDRESS,
    STORE_ERRORS,
    is_refusal,
    name_keys,
    reason,
    search_runs,
    show_address,
    store_home,
    use_store,
)

MOST_NAMED = 3  # refused values in a message
UNSENT = Path(".throughline") / "unsent"
UNSENT_TAG = "throughline.unsent"


def import_client() -> None:
    """Import the modules that recording a run and logging its model import on first use."""
    for module in ("mlflow.store.tracking.sqlalchemy_store", "mlflow.tensorflow"):
        importlib.import_module(module)


class Recorder:
    """Writes a run; a context manager, which can be entered again to continue the run.

    After the first failure to reach the store, everything is kept in .throughline/unsent/ for
    `sync`. Metrics that the run has already, of the same step and value, are not logged again. Tags
    and artifacts that were kept for later do not replace those of a later measurement.

    Args:
      run_id: Continues the run with this id.
      unsent: Continues the run with this tag, which began while the store was away, or starts it.
      follows: Adds to the run with this tag, and starts none.
      kept: An earlier recorder's calls, which are sent as they were.
      tags: Tags of the run; by default those of the current code, flow run and comparison.

    Attributes:
      sent: Whether the store has received everything.
      lost: Whether something could neither be sent nor kept.
    """

    def __init__(
        self,
        run_key: RunKey,
        *,
        run_id: str | None = None,
        unsent: str | None = None,
        follows: str | None = None,
        kept: PendingRun | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.run_id = run_id
        self.sent, self.lost = True, False
        self._run_key, self._follows, self._kept = run_key, follows, kept
        self._ends_as = kept.status if kept else "FINISHED"
        given = kept.tags if kept else tags
        self._tags = {**(read_lineage() | read_parent() if given is None else given)}
        if unsent:
            self._tags[UNSENT_TAG] = unsent
        self._unsent: list[list[Any]] = []
        self._problems: set[str] = set()
        self._earlier: Run | None = None  # the run before it is continued
        self._known: dict[str, dict[int, float]] = {}  # by metric and step

    @property
    def unsent(self) -> str | None:
        """The tag of a run that the store does not have yet."""
        return None if self.run_id else self._follows or self._tags.get(UNSENT_TAG)

    def __enter__(self) -> Recorder:
        try:
            self.call(self._start, starts=True)
        except BaseException as error:  # a signal while MLflow starts the run
            self.__exit__(type(error), error, None)
            if run_id := self.run_id:
                self.call(lambda: mlflow.MlflowClient().set_terminated(run_id, "KILLED"))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = "KILLED" if kind in (KeyboardInterrupt, SystemExit) else "FAILED"
        if kind is None:
            status = self._ends_as
        self.call(lambda: mlflow.end_run(status))
        active = mlflow.active_run()
        if active is not None and active.info.run_id == self.run_id:
            # It could not be ended; MLflow would end it as finished at exit.
            with contextlib.suppress(*STORE_ERRORS):
                mlflow.end_run(status)
        if self.sent:
            return
        pending = PendingRun(
            run_key=self._run_key,
            run_id=self.run_id,
            follows=self._follows,
            status=status,
            tags=self._tags,
            calls=self._unsent,
        )
        try:
            enqueue(store_home() / UNSENT, pending)
        except OSError as error:
            self.lost = True
            echo_problem(
                f"the data of {self._run_key.pipeline} for MLflow cannot be kept for `python -m"
                f" tasks.sync` ({disk_reason(error) or reason(error)}); only the run's own files"
                " have it"
            )

    def log_params(self, values: Mapping[str, Any]) -> None:
        """Log nested parameters, flattened with dots."""
        self._send("params", name_params(values))

    def log_metrics(self, values: Mapping[str, float | None], *, step: int | None = None) -> None:
        """Log metrics, except those that are None."""
        numbers = {key: float(one) for key, one in name_keys(values).items() if one is not None}
        self._send("metrics", numbers, step, time.time_ns() // 1_000_000)

    def set_tags(self, values: Mapping[str, str]) -> None:
        self._send("tags", dict(values))

    def log_artifact(self, path: Path, *, folder: str | None = None) -> None:
        self._send("artifact", str(path.resolve()), folder)

    def log_model(self, path: Path, objects: Mapping[str, str] | None = None) -> None:
        """Log a model from its .keras file, so that it can be registered and served.

        `objects`, module:name by name, are the project's objects that the model needs; their code
        is logged, too. A model that cannot be loaded is logged as a file.
        """
        self._send("model", str(path.resolve()), dict(objects or {}))

    def add_children(self, children: Mapping[str, Mapping[str, Any]]) -> None:
        """Add a child run for each name, with nested `params`, `metrics` (not None) and `tags`."""
        self._send("children", {name: dict(values) for name, values in children.items()})

    def log_input(self, name: str, digest: str) -> None:
        """Log the data that the run trains on; this is not kept for later."""
        source = from_numpy(np.empty((0,)), name=name, digest=digest[:32])
        self.call(lambda: mlflow.log_input(source, context="training"))

    def _send(self, kind: str, *values: Any) -> None:
        first = values[0]
        named = Path(first).name if isinstance(first, str) else ", ".join(list(first)[:MOST_NAMED])
        self.call(lambda: self._deliver(kind, *values), what=f"{kind} {named}")
        if not self.sent:
            self._unsent.append([kind, *values])

    def _deliver(self, kind: str, *values: Any) -> None:
        has_model = kind == "model" and self._earlier and list_models(self._earlier)
        if has_model or (kind in ("tags", "artifact") and self._is_outdated()):
            return
        if kind == "metrics":
            values = (self._leave_out_known(values[0], values[1]), *values[1:])
        send(kind, *values)

    def _leave_out_known(self, values: Mapping[str, Any], step: int | None) -> dict[str, float]:
        """Return a step's metrics as numbers, without those that the run has with equal values."""
        numbers = {key: float(value) for key, value in values.items()}
        if self._earlier is None or step is None:
            return numbers
        client, run_id = mlflow.MlflowClient(), self._earlier.info.run_id
        for key in numbers.keys() - self._known.keys():
            history = client.get_metric_history(run_id, key)
            self._known[key] = {one.step: one.value for one in history}
        return {
            key: value
            for key, value in numbers.items()
            if repr(self._known[key].get(step)) != repr(value)
        }

    def _is_outdated(self) -> bool:
        """Return whether the run was measured again after the calls that were kept."""
        if self._kept is None or self._earlier is None:
            return False
        client, run_id = mlflow.MlflowClient(), self._earlier.info.run_id
        measured = [call[1:] for call in self._kept.calls if call[0] == "metrics"]
        return any(
            later.timestamp > moment
            for values, step, moment in measured
            if step is None
            for key in [*values][:1]
            for later in client.get_metric_history(run_id, key)
        )

    def _start(self) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        # Otherwise MLflow prints a traceback for each failure, besides the line that reports it.
        logging.getLogger("mlflow.store.db").setLevel(logging.CRITICAL)
        use_store()
        tags = {
            "pipeline": self._run_key.pipeline,
            "data.digest": self._run_key.data_digest,
            **self._tags,
        }
        if self.run_id is None and self.unsent:
            self.run_id = find_sent(self.unsent)
            if self.run_id is None and self._follows:
                raise MissingInput("the run to which this is added has not been sent yet")
        self._earlier, self._known = find_run(self.run_id), {}
        if (run := self._earlier) is not None:
            tags.pop(PARENT_TAG, None)
            if self._kept and run.info.status == "FINISHED":  # another recorder has continued it
                self._ends_as, tags = "FINISHED", {}
            mlflow.start_run(run_id=self.run_id, tags=tags, log_system_metrics=False)
            return
        self.run_id = mlflow.start_run(
            experiment_id=get_experiment_id(self._run_key),
            run_name="/".join(filter(None, [tags.get(EXPERIMENT_TAG), self._run_key.pipeline])),
            tags=tags,
            log_system_metrics=self._kept is None,
        ).info.run_id

    def call(
        self, function: Callable[[], Any], *, what: str = "something", starts: bool = False
    ) -> None:
        """Call a function on the active run, and report a failure once; keep no call for later.

        If the store cannot be reached, all that is sent afterwards is kept for later. If it only
        refuses this call, which sends `what`, recording continues.
        """
        if not self.sent:
            return
        try:
            function()
        except Exception as error:  # noqa: BLE001 - nothing that trains depends on the server, or on what MLflow makes of a model
            if not starts and is_refusal(error) and self._has_run():
                problem = f"does not accept {what}; left out ({reason(error)})"
            else:
                self.sent = False
                if self.run_id is None and self._follows is None:
                    self._tags.setdefault(UNSENT_TAG, uuid4().hex)
                problem = f"cannot be written to ({reason(error)}); kept for `python -m tasks.sync`"
            if problem not in self._problems:
                self._problems.add(problem)
                echo_problem(f"MLflow at {show_address()} {problem}")

    def _has_run(self) -> bool:
        """Return whether the store has the run: a proxy whose server is away may say 404, too."""
        with contextlib.suppress(*STORE_ERRORS):
            return find_run(self.run_id) is not None
        return False


def find_run(run_id: str | None) -> Run | None:
    """Return a run; None without an id, or if the store has no such run or has deleted it."""
    if run_id is None:
        return None
    try:
        run = mlflow.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    return None if run.info.lifecycle_stage == "deleted" else run


def find_sent(unsent: str) -> str | None:
    """Return the id of a run that was kept for later; None until it is sent."""
    found = search_runs(f"tags.`{UNSENT_TAG}` = '{unsent}'")
    return found[0].info.run_id if found else None


def sync() -> tuple[int, int]:
    """Send the kept calls in .throughline/unsent/; return the numbers of sent and remaining runs.

    Calls remain if the store does not have the run that they add to. Raises DamagedFile at the end.
    """
    sent, waiting = 0, list[tuple[Path, PendingRun]]()
    with contextlib.suppress(DamagedFile):  # raised below, once the others are sent
        waiting.extend(list_pending(store_home() / UNSENT))
    # Runs come before the calls that add to them.
    for file, unsent in sorted(waiting, key=lambda each: bool(each[1].follows)):
        if is_gone(unsent.run_id, unsent.follows):
            echo(
                f"{from_here(file)} of {unsent.run_key.pipeline} is not sent: MLflow at"
                f" {show_address()} does not have its run. If another store has the run, set"
                f" {ADDRESS} to that store; otherwise delete the file and"
                f" {attachments_dir(file).name}"
            )
            continue
        recorder = Recorder(
            unsent.run_key, run_id=unsent.run_id, follows=unsent.follows, kept=unsent
        )
        with recorder:
            for call in unsent.calls:
                recorder._send(*call)
        if recorder.lost:
            break
        remove(file)  # a new file has the calls that could not be sent
        sent += recorder.sent
        try:
            mlflow.search_experiments(max_results=1)
        except STORE_ERRORS:
            break
    return sent, len([*list_pending(store_home() / UNSENT)])


def is_gone(run_id: str | None, unsent: str | None) -> bool:
    """Return whether a run, by its id or tag, is neither in the store nor kept for it.

    A run that is gone belongs to another store, or was deleted. False if the store does not answer.
    """
    with contextlib.suppress(*STORE_ERRORS, UserError):
        use_store()
        if unsent is None:
            return run_id is not None and find_run(run_id) is None
        kept = {each.tags.get(UNSENT_TAG) for _, each in list_pending(store_home() / UNSENT)}
        return unsent not in kept and find_sent(unsent) is None
    return False


def read_run_id(folder: Path) -> str | None:
    return RunRecord.read(folder).mlflow_run_id if RunRecord.path(folder).exists() else None
