"""MLflow: one run per configuration, a child of its comparison. Nothing that trains depends on the
server being there.

Every number is in the files of runs/NAME before it is sent. If the server cannot be reached, one
line reports it, the rest of the training continues, and `python -m tasks.sync` sends what is
missing later.
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
from throughline.tracking.experiments import RunKey, get_experiment_id
from throughline.tracking.lineage import EXPERIMENT_TAG, PARENT_TAG, read_lineage, read_parent
from throughline.tracking.outbox import PendingRun, attachments_dir, enqueue, list_pending, remove
from throughline.tracking.sending import LONGEST_PARAM, SENDERS, list_models
from throughline.tracking.store import (
    ADDRESS,
    STORE_ERRORS,
    is_refusal,
    name_keys,
    reason,
    show_address,
    store_home,
    use_store,
)

MOST_NAMED = 3  # of what a store does not take
UNSENT = Path(".throughline") / "unsent"
UNSENT_TAG = "throughline.unsent"


def import_client() -> None:
    """Import what recording a run in a database and logging its model need, as the first call of
    each would.
    """
    for module in ("mlflow.store.tracking.sqlalchemy_store", "mlflow.tensorflow"):
        importlib.import_module(module)


class Recorder:
    """A run that is being written; use it with `with`, again if it is to continue.

    With `run_id` it continues an earlier run, with `unsent` one that began while the store was
    away, by its tag, or starts it; with `follows`, such a tag, it adds to that run alone. `kept` is
    what an earlier one has kept, and is sent as that was. `tags` are those of the run; None: those
    of the code, the flow run and the comparison of now.

    After the first failure to reach the store everything is kept in a file of .throughline/unsent/
    instead, for `sync`; where that cannot be written, it is `lost`. Of a run that goes on no metric
    of a step is logged twice.
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
        self._known: dict[str, dict[int, float]] = {}  # by metric and step, of an earlier run

    @property
    def unsent(self) -> str | None:
        """The tag of a run that the store does not have yet; None where it has it."""
        return None if self.run_id else self._follows or self._tags.get(UNSENT_TAG)

    def __enter__(self) -> Recorder:
        try:
            self._guarded(self._start, starts=True)
        except BaseException as error:  # a signal, while MLflow begins the run
            self.__exit__(type(error), error, None)
            if run_id := self.run_id:
                self._guarded(lambda: mlflow.MlflowClient().set_terminated(run_id, "KILLED"))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = (
            self._ends_as
            if kind is None
            else "KILLED"
            if kind in (KeyboardInterrupt, SystemExit)
            else "FAILED"
        )
        self._guarded(lambda: mlflow.end_run(status))
        self._forget(status)
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
                f"what MLflow was to get of {self._run_key.pipeline} cannot be kept for `python -m"
                f" tasks.sync` ({disk_reason(error) or reason(error)}); it is in the files of the"
                " run alone"
            )

    def log_params(self, values: Mapping[str, Any]) -> None:
        """Log nested parameters, flattened with dots."""
        named = name_keys(values)
        self._send("params", {key: str(value)[:LONGEST_PARAM] for key, value in named.items()})

    def log_metrics(self, values: Mapping[str, float | None], *, step: int | None = None) -> None:
        """Log metrics; absent ones (None) stay absent."""
        self._send(
            "metrics",
            {key: float(value) for key, value in name_keys(values).items() if value is not None},
            step,
            time.time_ns() // 1_000_000,
        )

    def set_tags(self, values: Mapping[str, str]) -> None:
        """Set tags."""
        self._send("tags", dict(values))

    def log_artifact(self, path: Path, *, folder: str | None = None) -> None:
        """Log a file or folder."""
        self._send("artifact", str(path.resolve()), folder)

    def log_model(self, path: Path, objects: Mapping[str, str] | None = None) -> None:
        """Log a model from its .keras file, with a signature and requirements, so that it can be
        registered and served.

        `objects` are the project's classes and functions that it needs, as module:name; they and
        their code go with it. A model that cannot be logged is logged as a file.
        """
        self._send("model", str(path.resolve()), dict(objects or {}))

    def add_children(self, children: Mapping[str, Mapping[str, Any]]) -> None:
        """Add a run below this one for each of the children, by their names: with its `params`,
        nested, its `metrics`, of which absent ones (None) stay absent, and its `tags`.
        """
        self._send("children", {name: dict(values) for name, values in children.items()})

    def log_input(self, name: str, digest: str) -> None:
        """Log what the run trains on, by its name and digest; it is not kept for later."""
        source = from_numpy(np.empty((0,)), name=name, digest=digest[:32])
        self.call(lambda: mlflow.log_input(source, context="training"))

    def call(self, function: Callable[[], Any]) -> None:
        """Do anything else with the active run, protected alike; it is not kept for later."""
        self._guarded(function)

    def _send(self, kind: str, *values: Any) -> None:
        first = values[0]
        named = Path(first).name if isinstance(first, str) else ", ".join(list(first)[:MOST_NAMED])
        self._guarded(lambda: self._deliver(kind, *values), what=f"{kind} {named}")
        if not self.sent:
            self._unsent.append([kind, *values])

    def _deliver(self, kind: str, *values: Any) -> None:
        """Send what the run does not have: what it had been sent before an interruption may come
        again.
        """
        if kind == "metrics":
            values = (self._leave_out_known(values[0], values[1]), *values[1:])
        elif kind == "model" and self._earlier and list_models(self._earlier):
            return
        if kind != "metrics" or values[0]:
            SENDERS[kind](*values)

    def _leave_out_known(self, values: Mapping[str, Any], step: int | None) -> dict[str, float]:
        """Those of the metrics of a step that the run does not have, or has with another value, as
        numbers: a file holds strings for those that are not finite.
        """
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

    def _start(self) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        # A traceback of each failure that _try reports in one line.
        logging.getLogger("mlflow.store.db").setLevel(logging.CRITICAL)
        use_store()
        tags = {
            "pipeline": self._run_key.pipeline,
            "data.digest": self._run_key.data_digest,
            **self._tags,
        }
        if self.run_id is None and self.unsent:
            self.run_id = find_sent(self._run_key, self.unsent)
            if self.run_id is None and self._follows:
                raise MissingInput("the run that this belongs to has not been sent yet")
        self._earlier, self._known = find_run(self.run_id), {}
        if (run := self._earlier) is not None:
            tags.pop(PARENT_TAG, None)
            if self._kept and run.info.status == "FINISHED":  # by what has continued it since
                self._ends_as, tags = "FINISHED", {}
            mlflow.start_run(run_id=self.run_id, tags=tags, log_system_metrics=False)
            return
        self.run_id = mlflow.start_run(
            experiment_id=get_experiment_id(self._run_key),
            run_name="/".join(filter(None, [tags.get(EXPERIMENT_TAG), self._run_key.pipeline])),
            tags=tags,
            log_system_metrics=self._kept is None,
        ).info.run_id

    def _forget(self, status: str) -> None:
        """Leave no run active that could not be ended: MLflow would end it when the process exits,
        as finished, with a traceback if it cannot.
        """
        active = mlflow.active_run()
        if active is not None and active.info.run_id == self.run_id:
            with contextlib.suppress(*STORE_ERRORS):
                mlflow.end_run(status)

    def _guarded(
        self, function: Callable[[], Any], *, what: str = "something", starts: bool = False
    ) -> None:
        """Call the store. If it is away, report that once and keep the rest for later; if it
        refuses only `what` this call sends, report that once and continue.
        """
        if not self.sent:
            return
        try:
            function()
        except Exception as error:  # noqa: BLE001 - nothing that trains depends on the server, or on what MLflow makes of a model
            if not starts and is_refusal(error) and self._has_run():
                problem = f"does not take {what}; left out ({reason(error)})"
            else:
                self.sent = False
                if self.run_id is None and self._follows is None:
                    self._tags.setdefault(UNSENT_TAG, uuid4().hex)
                problem = f"cannot be written ({reason(error)}); kept for `python -m tasks.sync`"
            if problem not in self._problems:
                self._problems.add(problem)
                echo_problem(f"MLflow at {show_address()} {problem}")

    def _has_run(self) -> bool:
        """Whether the store answers, and has the run: a proxy whose server is away may answer 404,
        too.
        """
        with contextlib.suppress(*STORE_ERRORS):
            return find_run(self.run_id) is not None
        return False


def find_run(run_id: str | None) -> Run | None:
    """A run; None without an id, where the store answers that it does not have it, or that it has
    been deleted.
    """
    if run_id is None:
        return None
    try:
        run = mlflow.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    return None if run.info.lifecycle_stage == "deleted" else run


def find_sent(run_key: RunKey, unsent: str) -> str | None:
    """The id of a run that was kept for later, once it has been sent."""
    found = mlflow.search_runs(
        experiment_ids=[get_experiment_id(run_key)],
        filter_string=f"tags.`{UNSENT_TAG}` = '{unsent}'",
        order_by=["attributes.start_time ASC"],
        output_format="list",
    )
    return found[0].info.run_id if found else None


def sync() -> tuple[int, int]:
    """Send what is kept in .throughline/unsent/; returns how many runs were sent, and how many are
    still to be. What belongs to a run that the store does not have stays as it is.

    Raises:
      DamagedFile: something that is kept cannot be read.
    """
    sent, waiting = 0, []
    with contextlib.suppress(DamagedFile):  # which is said when the others are sent
        for each in list_pending(store_home() / UNSENT):
            waiting.append(each)
    # What belongs to another run comes after that.
    for file, unsent in sorted(waiting, key=lambda each: bool(each[1].follows)):
        continues = unsent.run_id or unsent.follows
        if continues and is_gone(unsent.run_key, unsent.run_id, unsent.follows):
            echo(
                f"what was kept of {unsent.run_key.pipeline} is left out: MLflow at"
                f" {show_address()} does not have its run; another store may, which {ADDRESS} then"
                f" has to name. If none has it, delete {from_here(file)}"
                f" and {attachments_dir(file).name}"
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
        remove(file)  # what could not be sent is in a file of its own again
        sent += recorder.sent
        if not (recorder.sent or _answers()):
            break
    return sent, len([*list_pending(store_home() / UNSENT)])


def is_gone(run_key: RunKey, run_id: str | None, unsent: str | None) -> bool:
    """Whether the run that something belongs to, by its id or its tag, is neither in the store nor
    kept for it: it is another store's, or was deleted. A store that does not answer says nothing.
    """
    with contextlib.suppress(*STORE_ERRORS, UserError):
        use_store()
        if unsent is None:
            return find_run(run_id) is None
        kept = {each.tags.get(UNSENT_TAG) for _, each in list_pending(store_home() / UNSENT)}
        return unsent not in kept and find_sent(run_key, unsent) is None
    return False


def _answers() -> bool:
    with contextlib.suppress(*STORE_ERRORS):
        mlflow.search_experiments(max_results=1)
        return True
    return False


def read_run_id(folder: Path) -> str | None:
    """The MLflow run of the results in runs/NAME; None where there is none."""
    return RunRecord.read(folder).mlflow_run_id if RunRecord.path(folder).exists() else None
