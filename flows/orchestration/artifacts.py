"""Artifacts on a run's page in the Prefect UI, including the reason for a failure."""

import base64
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run

from flows.servers.services import is_connection_error
from throughline.reporting import tuning_table
from throughline.reporting.table import comparison_table, to_records
from throughline.results.comparison import Comparison
from throughline.results.tuning import TuningResult
from throughline.shared.errors import StageFailed
from throughline.shared.layout import Layout
from throughline.tracking import comparison_run, recorder

UI_URL = "PREFECT_UI_URL"
LONGEST_REASON = 4000  # characters


@contextmanager
def _for_the_page() -> Iterator[None]:
    """Log a warning instead of failing if the server is away: no result depends on a run's page."""
    try:
        yield
    except Exception as error:
        if not is_connection_error(error):
            raise
        get_run_logger().warning(
            f"the run's page is incomplete: Prefect's server is away ({type(error).__name__})"
        )


class StageProgress:
    """A progress bar on the run's page that counts the finished stages."""

    def __init__(self, stages: int) -> None:
        self._stages, self._done = stages, 0
        self._artifact: Any = None  # its id, once the server has it
        self._show(f"none of {stages} stages yet")

    def advance(self, stage: str) -> None:
        self._done += 1
        self._show(f"{self._done} of {self._stages} stages; last: {stage}")

    @_for_the_page()
    def _show(self, what: str) -> None:
        share = 100 * self._done / self._stages
        if self._artifact is None:
            self._artifact = create_progress_artifact(share, key="progress", description=what)
        else:
            update_progress_artifact(self._artifact, share, description=what)


@_for_the_page()
def show_data(layout: Layout) -> None:
    """Show the classes in each split, the data that was left out, and sample pictures."""
    create_markdown_artifact(key="data", markdown=layout.glance.read_text(encoding="utf-8"))
    _show_picture("data-pictures", layout.sheet, "Examples of the training split, by class")


@_for_the_page()
def show_comparison(comparison: Comparison, report: Path, run_id: str | None) -> None:
    """Show the comparison as a table, in words, as pictures, and as links to MLflow."""
    headline, plots = comparison.headline, report / "plots"
    table: list[dict[str, Any]] = [*to_records(comparison_table(comparison))]
    create_table_artifact(key="comparison", table=table, description=headline)
    create_markdown_artifact(key="comparison-report", markdown=to_markdown(comparison))
    _show_picture("comparison-throughput", plots / "throughput.png", headline)
    shown = dict.fromkeys([comparison.baseline, comparison.best])
    steps = [f"{name}: real steps" for name in shown]
    _show_picture("comparison-timelines", plots / "timelines.png", ", ".join(steps))
    if pages := comparison_run.run_urls(run_id):
        create_link_artifact(key="mlflow-run", link=pages[0], link_text=headline)
        side_by_side = "its configurations side by side in MLflow, fastest first"
        create_link_artifact(key="mlflow-comparison", link=pages[1], link_text=side_by_side)


@_for_the_page()
def show_search(result: TuningResult, folder: Path) -> None:
    """Show a search as a table of candidates, in words, as a picture, and as a link to MLflow."""
    create_table_artifact(
        key="tuning", table=tuning_table.to_records(result), description=result.sentence
    )
    create_markdown_artifact(key="tuning-report", markdown=tuning_table.to_markdown(result))
    _show_picture("tuning-picture", folder / TuningResult.PICTURE, result.sentence)
    if pages := comparison_run.run_urls(result.mlflow_run_id):
        create_link_artifact(key="mlflow-run", link=pages[0], link_text=result.sentence)


@_for_the_page()
def link_to_report(report: Path) -> None:
    """Link to the report on the disk of the machine that made it; MLflow's run has a copy."""
    page = (report / "index.html").resolve()
    create_link_artifact(key="comparison-page", link=page.as_uri(), link_text=f"the report: {page}")


@_for_the_page()
def show_training(
    pipeline: str, result: Mapping[str, Any], folder: Path, compared: Comparison | None
) -> None:
    """Show a configuration's figures and a link to MLflow; if it was measured, a timeline, too."""
    table = [
        {"metric": key, "value": _round(value)}
        for key, value in result.items()
        if not isinstance(value, Mapping)
    ]
    headline = compared.headline if compared else f"{pipeline} is trained, not measured."
    create_table_artifact(key="training", table=table, description=headline)
    if compared:
        timeline = folder / "profile" / "timeline.png"
        _show_picture("training-timeline", timeline, f"{pipeline}: real steps")
    if pages := comparison_run.run_urls(recorder.read_run_id(folder)):
        create_link_artifact(key="mlflow-run", link=pages[0], link_text=f"{pipeline} in MLflow")


def to_markdown(comparison: Comparison) -> str:
    """Describe the comparison in Markdown: the headline, each configuration's cause and fix."""
    # The table would not fit: MLflow limits a note to 8,000 characters.
    fixes = [
        f"- **{row.pipeline}** ({row.verdict}): {row.cause}. Fix: `{row.fix}`"
        for row in comparison.configurations
    ]
    return "\n".join([comparison.headline, "", "## Cause and fix", "", *fixes])


def report_failure(flow: Any, run: Any, state: Any) -> None:
    """Show on the run's page what failed and where its log is."""
    pages, command = os.environ.get(UI_URL), f"`prefect flow-run logs {run.id}`"
    log = f"{pages}/runs/flow-run/{run.id}" if pages else command
    advice = f"The log: {log}. Finished stages are kept; retry the run to continue."
    text = f"{describe_failure(run.name, state)}\n\n{advice}"
    # Prefect calls this outside a stopped run, and `create_markdown_artifact` needs to be in one.
    key = f"{flow.name}-failure"
    artifact = ArtifactCreate(key=key, type="markdown", data=text, flow_run_id=run.id)
    with get_client(sync_client=True) as client:
        client.create_artifact(artifact)


def name_flow_run() -> str:
    return str(flow_run.parameters.get("name") or flow_run.name)


# Options of every flow.
REPORTED: dict[str, Any] = {
    "log_prints": True,
    "flow_run_name": name_flow_run,
    **{key: [report_failure] for key in ("on_failure", "on_crashed", "on_cancellation")},
}


def describe_failure(name: str, state: State) -> str:
    """Return Markdown that says how a run ended, with the reason as preformatted text."""
    reason = failure_reason(state)[:LONGEST_REASON]
    fence = "`" * max(3, *(1 + len(ticks) for ticks in re.findall("`+", reason)), 0)
    return f"# {name}: {state.name}\n\n{fence}\n{reason}\n{fence}"


def failure_reason(state: State) -> str:
    """Return why a run failed; outside the flow's process, perhaps only the reason's first line."""
    error = getattr(state.data, "result", state.data)
    if isinstance(error, StageFailed) and error.failure:
        return f"{error.stage}: {error.failure}"
    return state.message or "no message"


def _show_picture(key: str, path: Path, description: str) -> None:
    """Show a picture, embedded so that every browser that reaches the server sees it."""
    if path.exists():
        create_image_artifact(
            key=key,
            image_url=f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}",
            description=description,
        )


def _round(value: object) -> object:
    return round(value, 4 if abs(value) < 10 else 1) if isinstance(value, float) else value  # noqa: PLR2004
