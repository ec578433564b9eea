"""The parent run of a comparison in MLflow, its children, its report and its champion.

A configuration that was trained for another comparison or run is shown, and added to, in a copy of
its run; the original stays as it is.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import mlflow
from mlflow.entities import Metric, Param, Run
from mlflow.utils.logging_utils import disable_logging, enable_logging

from throughline.results.base import to_json
from throughline.results.comparison import Comparison, Row
from throughline.shared.errors import UserError
from throughline.shared.file_lock import hold_if_free
from throughline.shared.files import digest_json
from throughline.shared.progress import echo, echo_problem
from throughline.tracking.calls import list_models
from throughline.tracking.champion import (
    find_rejection_reason,
    make_tags,
    read_score,
    score_from,
)
from throughline.tracking.experiments import EXPERIMENT_PREFIX, RunKey, get_experiment_id
from throughline.tracking.lineage import (
    EXPERIMENT,
    EXPERIMENT_TAG,
    PARENT_TAG,
    read_lineage,
    read_parent,
)
from throughline.tracking.recorder import UNSENT_TAG, Recorder, find_run, find_sent
from throughline.tracking.store import (
    STORE_ERRORS,
    reason,
    search_runs,
    show_address,
    store_home,
    use_store,
)

UI_URL = "THROUGHLINE_MLFLOW_UI"  # MLflow's address for browsers, if it differs
OPEN = Path(".throughline") / "comparisons"  # a lock file for each open parent run
CHAMPION = "champion"
REUSED_TAG = "reused_run_id"  # tag of a copied run: the id of the original
# Whether a comparison chooses the champion: never, by merit, or on request.
Promotion = Literal["none", "earned", "asked for"]
NOT_REQUESTED = (
    "unchanged, since a run with changes chooses it only on request (promote: true, --promote)"
)

LATER = "run the same command again later"
REPORT_TAG = "report.digest"  # the last tag of a comparison that the store has completely
FASTEST = "metrics.`throughput/speedup_vs_naive`"
OF_RUNS = "workflowType=machine_learning"  # the part of MLflow that is not about language models


def run_urls(run_id: str | None) -> tuple[str, str] | None:
    """Return the URLs of a comparison's run and of its children, the fastest first; or None."""
    server = mlflow.get_tracking_uri()
    if run_id is None or not server.startswith("http"):
        return None
    try:
        experiment = mlflow.get_run(run_id).info.experiment_id
    except STORE_ERRORS:
        return None
    page = (os.environ.get(UI_URL) or server).rstrip("/")
    runs, run = f"{page}/#/experiments/{quote(experiment)}/runs", quote(run_id)
    children = quote(f"tags.`{PARENT_TAG}` = '{run_id}'")
    listed = f"searchFilter={children}&orderByKey={quote(FASTEST)}&orderByAsc=false"
    return f"{runs}/{run}?{OF_RUNS}", f"{runs}?{listed}&{OF_RUNS}"


@contextmanager
def open_comparison(
    run_key: RunKey, name: str, lineage: Mapping[str, str] | None = None
) -> Iterator[str | None]:
    """Start the parent run of a comparison; yield its id, None if the store cannot be reached.

    If the block raises, the run is marked as failed or killed, as are earlier ones of this project
    that `kill -9` interrupted. `lineage` are further tags.
    """
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    use_store()
    client, tags = mlflow.MlflowClient(), {"pipeline": "comparison", **read_lineage()}
    try:
        experiment = get_experiment_id(run_key)
        started = client.create_run(experiment, run_name=name, tags={**tags, **(lineage or {})})
    except STORE_ERRORS as error:
        echo(
            f"MLflow at {show_address()} cannot be reached ({reason(error)}); no parent"
            f" run was created, and no champion will be chosen; {LATER}"
        )
        started = None
    if started is None:  # an error in the block is none of the above
        yield None
        return
    run_id = started.info.run_id
    try:
        with hold_if_free(store_home() / OPEN / run_id, "compares configurations"):
            _end_killed()
            yield run_id
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        with suppress(*STORE_ERRORS):
            client.set_terminated(run_id, status)
        raise


def _end_killed() -> None:
    """End this store's parent runs whose processes have ended: the lock's file exists, unlocked."""
    for file in (store_home() / OPEN).glob("*"):
        with suppress(*STORE_ERRORS):
            if find_run(file.name) is None:
                continue
            with hold_if_free(file, "ends a comparison that was killed") as free:
                # Asked now, because it may have ended since the file was listed.
                if free is not None and mlflow.get_run(file.name).info.status == "RUNNING":
                    mlflow.MlflowClient().set_terminated(file.name, "KILLED")


def close_comparison(
    run_id: str,
    run_key: RunKey,
    comparison: Comparison,
    report: Path,
    *,
    note: str,
    promotion: Promotion,
) -> bool:
    """Complete the parent run, and return whether the store has the complete run.

    Every configuration whose run is in the store gets a child run; after a training elsewhere, that
    is a copy with the tag `reused_run_id`. Unless `promotion` is `none`, the best model may become
    champion. `note` (Markdown) is shown on the run's first page. If the store cannot be reached,
    children and champion are not kept for later.
    """
    rows = list(comparison.configurations)

    def find_sent_runs() -> None:
        for place, row in enumerate(rows):
            if row.unsent:
                rows[place] = replace(row, mlflow_run_id=find_sent(row.unsent))

    with Recorder(run_key, run_id=run_id) as parent:
        parent.call(find_sent_runs)
        parent.log_metrics(
            {f"speedup_vs_naive/{row.pipeline}": row.speedup_vs_naive for row in rows}
        )
        parent.set_tags(
            {
                "headline": comparison.headline,
                **({"best": comparison.best} if comparison.tied else {}),
                "data.digest": comparison.data_digest,
                "mlflow.note.content": note,
            }
        )
        parent.log_artifact(report, folder="report")
        parent.call(lambda: _complete_children(run_id, rows))

        def decide() -> None:
            decision, asked_for = NOT_REQUESTED, promotion == "asked for"
            if promotion != "none":
                decision = register_champion(run_id, rows, comparison.best, asked_for=asked_for)
            mlflow.set_tag(CHAMPION, decision)
            echo(f"champion: {decision}")

        parent.call(decide)
        waiting = [row.pipeline for row in rows if row.unsent and not row.mlflow_run_id]
        if parent.sent and not waiting:
            parent.set_tags({REPORT_TAG: digest_json(to_json(comparison))})
    if not parent.sent and promotion != "none":
        echo_problem(f"champion: not decided, since MLflow cannot be reached; {LATER}")
    return parent.sent and not waiting


def has_comparison(report: Path) -> bool:
    """Return whether the store has a folder's whole comparison, if any; True without an answer."""
    try:
        digest = digest_json(to_json(Comparison.read(report)))
    except UserError:  # no comparison, or one of another version
        return False
    use_store()
    with suppress(*STORE_ERRORS):
        return bool(search_runs(f"tags.`{REPORT_TAG}` = '{digest}'"))
    return True


def register_champion(run_id: str, rows: Sequence[Row], best: str, *, asked_for: bool) -> str:
    """Give the best configuration's model the alias `champion` if it may; return the decision.

    A champion that was set by hand, or has another metric, is replaced only if `asked_for`.
    """
    client = mlflow.MlflowClient()
    experiment = mlflow.get_experiment(mlflow.get_run(run_id).info.experiment_id)
    name = EXPERIMENT_PREFIX.replace("/", "-") + experiment.name.removeprefix(EXPERIMENT_PREFIX)
    scores = {row.pipeline: read_score(row) for row in rows}
    row, score = next(row for row in rows if row.pipeline == best), scores[best]
    versions = client.search_model_versions(f"name = '{name}'")
    found = client.search_registered_models(f"name = '{name}'")
    champions = [str(model.aliases.get(CHAMPION)) for model in found]
    present = next((one for one in versions if str(one.version) in champions), None)
    if present is not None and present.run_id == row.mlflow_run_id:
        return f"stays version {present.version}, which is {best} from the same training"
    others = [other for pipeline, other in scores.items() if pipeline != best]
    current = score_from(present.tags) if present else None
    if present and not asked_for and (current is None or current.metric != score.metric):
        why = "was set by hand" if current is None else f"is judged by its {current.metric}"
        return (
            f"unchanged, since version {present.version} {why}: --promote (promote: true) replaces"
            " it"
        )
    earlier = [kept for version in versions if (kept := score_from(version.tags))]
    against = find_rejection_reason(score, others, earlier)
    if against is not None:
        return f"unchanged, since {best} does not qualify: {against}"
    run = find_run(row.mlflow_run_id)
    models = list_models(run) if run else []
    if not models:
        return f"unchanged, since MLflow has no model of {best} that it could serve"
    tags = {"pipeline": best, "plan": row.plan}
    disable_logging()  # the decision is reported in one line
    try:
        version = mlflow.register_model(models[0].model_uri, name, tags=tags)
    finally:
        enable_logging()
    client.set_registered_model_alias(name, CHAMPION, version.version)
    # Added last, because scores are compared only with versions that became champion.
    for tag, value in make_tags(score).items():
        client.set_model_version_tag(name, version.version, tag, value)
    change = f"{score}; before: {current or 'no scored champion'}"
    return f"version {version.version} of {name}, {best}: {change}"


def _complete_children(parent: str, rows: Sequence[Row]) -> None:
    client = mlflow.MlflowClient()
    for row in rows:
        run = find_run(row.mlflow_run_id)
        if run is None:  # the run is in another store, or deleted
            continue
        own, tags = run.data.tags.get(PARENT_TAG) == parent, {PARENT_TAG: parent}
        target = run.info.run_id
        if not own:
            target = find_copy(run, tags) or copy_run(run, str(run.info.run_name), tags)
        metrics = {
            "throughput/speedup_vs_naive": row.speedup_vs_naive,
            "throughput/steady_examples_per_s": row.steady_examples_per_s,
        }
        moment = time.time_ns() // 1_000_000
        client.log_batch(target, [Metric(key, value, moment, 0) for key, value in metrics.items()])
        if not own:
            client.set_terminated(target)


def copy_run(run: Run, name: str, tags: Mapping[str, str]) -> str:
    """Copy a run, without artifacts but with these `tags`; return the id of the (running) copy."""
    client, moment = mlflow.MlflowClient(), time.time_ns() // 1_000_000
    kept = {
        key: value
        for key, value in run.data.tags.items()
        if not key.startswith("mlflow.") and key != UNSENT_TAG  # it names the original
    }
    all_tags = {**kept, **tags, REUSED_TAG: run.info.run_id}
    copy = client.create_run(run.info.experiment_id, run_name=name, tags=all_tags).info.run_id
    client.log_batch(  # in few requests
        copy,
        [Metric(key, value, moment, 0) for key, value in run.data.metrics.items()],
        [Param(key, value) for key, value in run.data.params.items()],
    )
    return copy


def find_copy(run: Run, tags: Mapping[str, str | None]) -> str | None:
    """Return the id of a run's copy with these tags, or None; a None tag must be absent."""
    for copy in search_runs(f"tags.{REUSED_TAG} = '{run.info.run_id}'"):
        if all(copy.data.tags.get(key) == value for key, value in tags.items()):
            return copy.info.run_id
    return None


def record_measurement(run_key: RunKey, run_id: str | None, unsent: str | None) -> Recorder:
    """Make a recorder that adds measurements to the run of a training, whose tags stay.

    The training is given by the id of its run, or by the tag of a run that was kept for later. A
    run with changes that did not train it adds to a copy under its own name, if the store answers.
    """
    name = os.environ.get(EXPERIMENT)
    if name:
        with suppress(*STORE_ERRORS, UserError):
            use_store()
            trained = find_run(find_sent(unsent) if unsent else run_id)
            if trained and trained.data.tags.get(EXPERIMENT_TAG) != name:
                tags = read_lineage() | read_parent()
                same = {tag: tags.get(tag) for tag in (EXPERIMENT_TAG, PARENT_TAG)}
                copy = find_copy(trained, same)
                run_id = copy or copy_run(trained, f"{name}/{run_key.pipeline}", tags)
                unsent = None
    return Recorder(run_key, run_id=run_id, follows=unsent, tags={})
