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
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import mlflow
import numpy as np
from mlflow.data.numpy_dataset import from_numpy
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec

from throughline.results.train import RunRecord
from throughline.shared.errors import DamagedFile, MissingInput, UserError
from throughline.shared.layout import from_here
from throughline.shared.progress import echo, echo_problem
from throughline.tracking.experiments import RunKey, get_experiment_id
from throughline.tracking.outbox import PendingRun, enqueue, list_pending, remove
from throughline.tracking.store import (
    STORE_ERRORS,
    is_refusal,
    name_keys,
    reason,
    show_address,
    store_home,
    use_store,
)

PARENT_RUN = "THROUGHLINE_PARENT_RUN"
PARENT_TAG = "mlflow.parentRunId"
FLOW_RUN = "THROUGHLINE_FLOW_RUN"
EXPERIMENT_TAG = "dvc.experiment"  # the name of a run with changes
LONGEST_PARAM = 6000
MOST_NAMED = 3  # of what a store does not take
# What a run changes itself; the parameters are in the run, and of dvc.yaml it is a list.
OWN_CHANGES = tuple(f":(exclude){name}" for name in ("params.yaml", "dvc.lock", "dvc.yaml"))
LISTED = re.compile(r"^(      # Own ops and models[^\n]*\n)(?:      - [^\n]*\n)*", re.MULTILINE)
UNSENT = Path(".throughline") / "unsent"
UNSENT_TAG = "throughline.unsent"


def import_client() -> None:
    """Import what recording a run in a database and logging its model need, as the first call of
    each would.
    """
    for module in ("mlflow.store.tracking.sqlalchemy_store", "mlflow.tensorflow"):
        importlib.import_module(module)


class Recorder:
    """A run that is being written; use it with `with`, again if it is to continue. With `run_id` it
    continues an earlier run, with `follows` one that was kept for later, by its tag. `kept` is what
    an earlier one has kept, and is sent as that was.

    After the first failure to reach the store everything is kept in a file of .throughline/unsent/
    instead, for `sync`; `unsent` is the tag of a run that the store does not have yet.
    """

    def __init__(
        self,
        run_key: RunKey,
        *,
        run_id: str | None = None,
        follows: str | None = None,
        kept: PendingRun | None = None,
    ) -> None:
        self.run_id = run_id
        self.sent = True
        self.unsent: str | None = None
        self._run_key, self._follows, self._kept = run_key, follows, kept
        self._ends_as = kept.status if kept else "FINISHED"
        self._tags = dict(kept.tags) if kept else read_lineage() | read_parent()
        self._unsent: list[list[Any]] = []
        self._problems: set[str] = set()

    def __enter__(self) -> Recorder:
        self._guarded(self._start, starts=True)
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
        if self.run_id is None and self._follows is None:
            self.unsent = self._tags.setdefault(UNSENT_TAG, uuid4().hex)
        enqueue(
            store_home() / UNSENT,
            PendingRun(
                run_key=self._run_key,
                run_id=self.run_id,
                follows=self._follows,
                status=status,
                tags=self._tags,
                calls=self._unsent,
            ),
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
        self._guarded(lambda: SENDERS[kind](*values), what=f"{kind} {named}")
        if not self.sent:
            self._unsent.append([kind, *values])

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
        if self.run_id is None and self._follows:
            self.run_id = find_sent(self._run_key, self._follows)
            if self.run_id is None:
                raise MissingInput("the run that this belongs to has not been sent yet")
        if (run := find_run(self.run_id)) is not None:
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


def _send_model(path: str, objects: Mapping[str, str] | None = None) -> None:
    if not Path(path).exists():
        echo(f"{path} is gone and was left out")
        return
    import keras
    import tensorflow as tf

    from throughline.models.inference import describe_outputs
    from throughline.models.model_files import code_paths, imported, load_model

    try:
        own = imported(objects or {})
        model: Any = load_model(Path(path), objects or {})
    except Exception as error:  # noqa: BLE001 - user-defined layers make Keras raise anything
        echo(
            f"  MLflow gets the file of the model, not a model that it can serve ({reason(error)})"
        )
        mlflow.log_artifact(path)
        return
    several = len(model.inputs) > 1
    inputs = [
        TensorSpec(
            np.dtype(one.dtype),
            tuple(-1 if size is None else size for size in one.shape),
            name=one.name if several else None,
        )
        for one in model.inputs
    ]
    outputs = TensorSpec(np.dtype("float32"), (-1, *model.output_shape[1:]))
    signature = ModelSignature(inputs=Schema([*inputs]), outputs=Schema([outputs]))
    needs = [f"tensorflow=={tf.__version__}", f"keras=={keras.__version__}"]
    if own:
        needs.append(f"cloudpickle=={version('cloudpickle')}")
    mlflow.tensorflow.log_model(
        model,
        name="model",
        metadata=describe_outputs(Path(path)),
        signature=signature,
        pip_requirements=needs,
        custom_objects=own or None,
        code_paths=code_paths(objects or {}) or None,
    )


def _send_artifact(path: str, folder: str | None) -> None:
    if not Path(path).exists():
        echo(f"{path} is gone and was left out")
    elif Path(path).is_dir():
        mlflow.log_artifacts(path, folder)
    else:
        mlflow.log_artifact(path, folder)


SENDERS: dict[str, Callable[..., Any]] = {
    "params": mlflow.log_params,
    "metrics": lambda values, step, moment: mlflow.log_metrics(values, step=step, timestamp=moment),
    "tags": mlflow.set_tags,
    "artifact": _send_artifact,
    "model": _send_model,
}


def sync() -> tuple[int, int]:
    """Send what is kept in .throughline/unsent/; returns how many runs were sent, and how many are
    still to be. What belongs to a run that is gone is left out.

    Raises:
      DamagedFile: something that is kept cannot be read.
    """
    sent, waiting = 0, []
    with contextlib.suppress(DamagedFile):  # which is said when the others are sent
        for each in list_pending(store_home() / UNSENT):
            waiting.append(each)
    # What belongs to another run comes after that.
    for file, unsent in sorted(waiting, key=lambda each: bool(each[1].follows)):
        if unsent.follows and is_gone(unsent.run_key, unsent.run_id, unsent.follows):
            echo(
                f"a profile of {unsent.run_key.pipeline} is left out: the store has no run of it;"
                f" if that is so for good, delete {from_here(file)}"
            )
            continue
        recorder = Recorder(
            unsent.run_key, run_id=unsent.run_id, follows=unsent.follows, kept=unsent
        )
        with recorder:
            for call in unsent.calls:
                recorder._send(*call)
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


def _differs(committed: str, file: Path) -> bool:
    """Whether dvc.yaml is another one than git has, but for the list of own code in it."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return LISTED.sub(r"\1", text).strip() != LISTED.sub(r"\1", f"{committed}\n").strip()


def _answers() -> bool:
    with contextlib.suppress(*STORE_ERRORS):
        mlflow.search_experiments(max_results=1)
        return True
    return False


def read_run_id(folder: Path) -> str | None:
    """The MLflow run of the results in runs/NAME; None where there is none."""
    return RunRecord.read(folder).mlflow_run_id if RunRecord.path(folder).exists() else None


def read_lineage() -> dict[str, str]:
    """Tags that tie a run to its code, experiment and flow run."""
    tags = {}
    if commit := _git("rev-parse", "HEAD"):
        dirty = _git("status", "--porcelain", "-uno", "--", ":/", *OWN_CHANGES) or _differs(
            _git("show", "HEAD:./dvc.yaml"), Path("dvc.yaml")
        )
        tags |= {"git.commit": commit, "git.dirty": str(bool(dirty)).lower()}
    for tag, variable in ((EXPERIMENT_TAG, "DVC_EXP_NAME"), ("prefect.flow_run_id", FLOW_RUN)):
        if os.environ.get(variable):
            tags[tag] = os.environ[variable]
    return tags


def read_parent() -> dict[str, str]:
    """The tag that makes a new run a child of the comparison that it is trained for, if any."""
    parent = os.environ.get(PARENT_RUN)
    return {PARENT_TAG: parent} if parent else {}


def _git(*arguments: str) -> str:
    """What git says of the current folder; nothing without a repository, or without git."""
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, errors="replace", check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()
