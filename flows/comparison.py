"""Every configuration of params.yaml through all stages, then the report: `python -m flows.comparison`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from prefect import flow, get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from rich.console import Console
from rich.table import Table

from flows.command import Name, Overlay, Set, quiet, read_overlay
from flows.run import MEASURED, PREPARATION, Run, begin, known_pipelines
from flows.workspace import overridden_params
from tasks.errors import told_plainly
from tasks.evidence import tracking


@flow(name="comparison", log_prints=True)
def comparison(
    pipelines: list[str] | None = None, overrides: list[str] | None = None, overlay: dict[str, Any] | None = None, name: str | None = None
) -> Path | None:
    """Run the given configurations (all, if none are named) through every stage and compare them.

    Returns the folder of the report, or None where only some configurations were asked for. With overrides the run has
    its own worktree and becomes a DVC experiment.
    """
    run = begin(overrides=overrides, overlay=overlay, name=name)
    chosen = known_pipelines(run.params, pipelines or list(run.params.pipelines))
    parent = open_parent(run, chosen)
    run = run.below(parent)
    prepared = run.chain(PREPARATION)
    ran = [run.chain([f"{stage}@{pipeline}" for stage in MEASURED], upstream_ran=prepared) for pipeline in chosen]
    if set(chosen) != set(run.params.pipelines):
        get_run_logger().info("report left out: it compares all configurations of params.yaml, and only some were asked for")
        return None
    reported = run.chain(["report"], upstream_ran=prepared or any(ran))
    report = run.workspace.root / "report"
    summary = json.loads((report / "summary.json").read_text())
    publish(summary, report)
    if parent:
        tracking.close_comparison(parent, run.params.data.source, summary, report)
    if reported or any(ran):
        run.keep()
    return report


def open_parent(run: Run, chosen: list[str]) -> str | None:
    """Open the MLflow run that the configurations' runs belong to, unless everything is up to date."""
    concerned = {*PREPARATION, "report", *(f"{stage}@{pipeline}" for stage in MEASURED for pipeline in chosen)}
    return tracking.open_comparison(run.params.data.source, run.name) if concerned & run.place.stale else None


def publish(summary: dict[str, Any], report: Path) -> None:
    """Show the comparison in Prefect: a table, the same in words, and where the page is."""
    shown = (
        "pipeline",
        "train_examples_per_s",
        "input_examples_per_s",
        "model_examples_per_s",
        "speedup_vs_naive",
        "stall_pct",
        "val_metric",
        "verdict",
    )
    table = [{column: _rounded(row[column]) for column in shown} for row in summary["configurations"]]
    create_table_artifact(key="comparison", table=table, description=summary["headline"])
    lines = ["| " + " | ".join(shown) + " |", "|" + "---|" * len(shown)]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in table]
    fixes = [f"- **{row['pipeline']}** ({row['verdict']}): {row['cause']}. Fix: `{row['fix']}`" for row in summary["configurations"]]
    create_markdown_artifact(
        key="comparison-report", markdown="\n".join([f"# {summary['headline']}", "", *lines, "", "## Cause and fix", "", *fixes])
    )
    create_link_artifact(key="comparison-page", link=(report / "index.html").resolve().as_uri(), link_text="report/index.html")


def _rounded(value: object) -> object:
    return round(value, 4 if abs(value) < 10 else 1) if isinstance(value, float) else value  # noqa: PLR2004


def show(summary: dict[str, Any], report: Path) -> None:
    """Print the comparison as a table on the terminal."""
    table = Table(
        title=summary["headline"], caption=f"examples/s; the page about it: {report / 'index.html'}", title_justify="left", title_style="bold"
    )
    table.add_column("configuration")
    for heading in ("training", "× " + summary["baseline"], "input alone", "model alone", "stall", summary["metric"]):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in summary["configurations"]:
        figures = [f"{row[key]:,.0f}" for key in ("train_examples_per_s", "input_examples_per_s", "model_examples_per_s")]
        quality = row["val_metric"] if row["test_metric"] is None else row["test_metric"]
        table.add_row(
            row["pipeline"],
            figures[0],
            f"{row['speedup_vs_naive']:.2f}",
            *figures[1:],
            f"{row['stall_pct']:.0f} %",
            f"{quality:.4f}",
            row["verdict"],
            style="bold" if row["pipeline"] in summary["tied"] else None,
        )
    Console(width=120 if not sys.stdout.isatty() else None).print(table)


def command(
    pipeline: Annotated[list[str] | None, typer.Option("--pipeline", help="only this configuration; repeatable")] = None,
    set_: Set = None,
    overlay: Overlay = None,
    name: Name = None,
) -> None:
    """Run every configuration of params.yaml (or those given) through all stages, then write report/index.html."""
    quiet()
    with told_plainly():
        layer = read_overlay(overlay)
        known_pipelines(overridden_params(Path.cwd(), set_ or [], layer), pipeline or [])
        report = comparison(pipelines=pipeline, overrides=set_, overlay=layer, name=name)
        if report:
            show(json.loads((report / "summary.json").read_text()), report)


if __name__ == "__main__":
    typer.run(command)
