"""Stage 7, report: put all configurations side by side, check that they did the same work, and
write one page about it.

Writes report/summary.json, report/plots/ and report/index.html, a single file that needs no
network.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from tasks.cli import stage_cli
from tasks.errors import MissingInput, UnequalConfigurations
from tasks.files import read_json, resumable_folder, write_json
from tasks.layout import Layout
from tasks.progress import echo
from tasks.reporting.checklist import checklist
from tasks.reporting.plots import plot_throughput, plot_timelines
from tasks.reporting.ranking import (
    accuracy_warning,
    baseline,
    best,
    break_even_epoch,
    drift_pct,
    headline,
    ratio_interval,
    reference_rate,
    relative_interval,
    relative_rate,
    tied,
)

RESULT_FILES = (
    "plan.json",
    "input.json",
    "train.json",
    "run.json",
    "profile.json",
    "profile/breakdown.json",
    "profile/diagnosis.json",
    "profile/steps.json",
)


def report(names: Sequence[str], layout: Layout, out: Path) -> dict[str, Any]:
    """Compare the configurations `names` from their result files and write the report into `out`.

    A configuration without results is left out and named, with what is missing of it.

    Raises:
      MissingInput: no configuration has been built, trained and profiled.
      UnequalConfigurations: two configurations delivered different examples; nothing is compared.
    """
    missing = {name: lacking for name in names if (lacking := _missing_files(layout.run(name)))}
    results = {name: _results(layout.run(name)) for name in names if name not in missing}
    if not results:
        raise MissingInput(
            "; ".join(
                f"{layout.run(name)}: {', '.join(lacking)} missing"
                for name, lacking in missing.items()
            )
            + "; run `dvc repro` first"
        )
    _check_equal(results)
    rows = _rows(results, setup_s=_snapshot_seconds(layout))
    top, base = best(rows), baseline(rows)
    shown = results[top["pipeline"]]
    summary = {
        "headline": headline(rows),
        "best": top["pipeline"],
        "tied": tied(rows),
        "drift_pct": drift_pct(rows),
        "baseline": base["pipeline"],
        "metric": rows[0]["metric"],
        "warning": accuracy_warning(rows),
        "missing": missing,
        "machine": shown["input"]["machine"],
        "examples_digest": next(
            (
                r["input"]["equality"]["digest"]
                for r in results.values()
                if "difference" not in r["input"]
            ),
            "none",
        ),
        "data_digest": shown["plan"]["data_digest"],
        "checklist": [
            asdict(point)
            for point in checklist(
                shown["plan"]["config"], read_json(layout.shards / "index.json"), top
            )
        ],
        "configurations": rows,
    }
    with resumable_folder(out, key="report") as folder:
        (folder / "plots").mkdir(exist_ok=True)
        plot_throughput(rows, folder / "plots")
        _plot_side_by_side(layout, dict.fromkeys([base["pipeline"], top["pipeline"]]), folder)
        pd.DataFrame(rows).drop(columns="relative_rates").to_csv(
            folder / "plots" / "throughput.csv", index=False
        )
        (folder / "index.html").write_text(_page(summary, results, layout, folder))
        write_json(folder / "summary.json", summary)
    return summary


def _plot_side_by_side(layout: Layout, names: Mapping[str, None], folder: Path) -> None:
    """Timelines over the same length of real time, one below the other."""
    files = {name: layout.run(name) / "profile" / "timeline.json" for name in names}
    found = {name: read_json(file)["lanes"] for name, file in files.items() if file.exists()}
    if found:
        plot_timelines(found, folder / "plots" / "timelines")


def _snapshot_seconds(layout: Layout) -> float:
    """How long the snapshot took to write; 0 where that is not known."""
    file = layout.snapshot.with_suffix(".json")
    return read_json(file)["seconds"] if file.exists() else 0.0


def _missing_files(folder: Path) -> list[str]:
    return [name for name in RESULT_FILES if not (folder / name).exists()]


def _results(folder: Path) -> dict[str, Any]:
    return {Path(name).stem: read_json(folder / name) for name in RESULT_FILES}


def _check_equal(results: Mapping[str, Mapping[str, Any]]) -> None:
    digests: dict[str, list[str]] = {}
    for name, result in results.items():
        if "difference" in result["input"]:
            continue  # approximate by its own wish: the difference is shown
        digests.setdefault(result["input"]["equality"]["digest"], []).append(name)
    if len(digests) > 1:
        groups = "; ".join(
            f"{', '.join(names)}: {digest[:12]}" for digest, names in digests.items()
        )
        raise UnequalConfigurations(
            f"the configurations did not deliver the same examples ({groups}); their throughputs"
            " cannot be compared"
        )


def _rows(results: Mapping[str, Mapping[str, Any]], *, setup_s: float) -> list[dict[str, Any]]:
    """One row per configuration, in the order of params.yaml."""
    rows = [_row(name, result) for name, result in results.items()]
    base, reference = baseline(rows), reference_rate(rows)
    for row in rows:
        low, high = relative_interval(row)
        row["steady_examples_per_s"] = relative_rate(row) * reference
        row["steady_examples_per_s_low"], row["steady_examples_per_s_high"] = (
            low * reference,
            high * reference,
        )
        row["ceiling_examples_per_s"] = (
            row["model_examples_per_s"] / row["reference_examples_per_s"] * reference
        )
        row["speedup_vs_naive"] = relative_rate(row) / relative_rate(base)
        row["speedup_vs_naive_low"], row["speedup_vs_naive_high"] = ratio_interval(row, base)
    for row in rows:
        row["break_even_epoch"] = break_even_epoch(row, base, setup_s=setup_s)
    return rows


def _row(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """What the report says about one configuration."""
    plan, input_only, trained, profiled, diagnosis = (
        result[key] for key in ("plan", "input", "train", "profile", "diagnosis")
    )
    return {
        "pipeline": name,
        "plan": plan["plan"],
        "examples": plan["examples"],
        "gathers": plan["config"]["read"] == "snapshot",
        "caches": plan["config"]["cache"] is not None,
        "train_examples_per_s": trained["throughput"]["train_examples_per_s"],
        "relative_rates": result["steps"]["relative_rates"],
        "reference_examples_per_s": profiled["reference_examples_per_s"],
        "input_examples_per_s": input_only["throughput"]["input_examples_per_s"],
        "cold_examples_per_s": input_only["throughput"]["cold_examples_per_s"],
        "model_examples_per_s": profiled["model_examples_per_s"],
        "attainable_examples_per_s": profiled["attainable_examples_per_s"],
        **{
            key: profiled[key]
            for key in (
                "stall_pct",
                "stall_pct_low",
                "stall_pct_high",
                "wait_ms_p50",
                "predicted_gain",
            )
        },
        "first_batch_s": input_only["throughput"]["first_batch_s"],
        "epoch_gap_s": input_only["throughput"]["epoch_gap_s"],
        "step_ms_p50": trained["step"]["ms_p50"],
        "step_ms_p95": trained["step"]["ms_p95"],
        "step_ms_p99": trained["step"]["ms_p99"],
        "rss_mb_max": trained["usage"]["rss_mb_max"],
        "disk_read_mb": trained["usage"]["disk_read_mb"],
        "cpu_seconds_per_1k_examples": trained["cpu_seconds_per_1k_examples"],
        "gpu_utilization_pct_mean": trained["usage"]["gpu_utilization_pct_mean"],
        "metric": trained["metric"],
        "held_out": input_only["held_out"],
        "judged": trained.get("held_out"),
        "val_metric": trained["train"][f"val_{trained['metric']}"],
        "test_metric": trained.get("test", {}).get(trained["metric"]),
        "difference_mean": input_only.get("difference", {}).get("mean"),
        "difference_max": input_only.get("difference", {}).get("max"),
        "verdict": diagnosis["verdict"],
        "cause": diagnosis["cause"],
        "fix": diagnosis["fix"],
        "mlflow_run_id": result["run"]["mlflow_run_id"],
    }


def _page(
    summary: Mapping[str, Any], results: Mapping[str, Any], layout: Layout, folder: Path
) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "reporting"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    pictures = {
        name: {
            kind: _svg(layout.run(name) / "profile" / f"{kind}.svg")
            for kind in ("timeline", "steps")
        }
        for name in results
    }
    plots = {kind: _svg(folder / "plots" / f"{kind}.svg") for kind in ("throughput", "timelines")}
    return environment.get_template("report.html").render(
        summary=summary, plots=plots, pictures=pictures, results=results
    )


def _svg(path: Path) -> str:
    """The picture as an address for an image, in which a browser runs no script whatever the file
    holds; empty where there is none.
    """
    return (
        f"data:image/svg+xml;base64,{b64encode(path.read_bytes()).decode()}"
        if path.exists()
        else ""
    )


def main() -> None:
    """Put all configurations side by side and write report/."""
    with stage_cli(main) as params:
        summary = report(list(params.pipelines), Layout(), Layout().report)
        echo(summary["headline"])
        columns = {
            "steady": 10,
            "×naive": 8,
            "epochs": 10,
            "input": 12,
            "model": 10,
            "stall": 8,
            summary["metric"]: 10,
        }
        echo(
            f"{'configuration':<24}"
            + "".join(f"{name:>{width}}" for name, width in columns.items())
            + "  verdict"
        )
        for row in summary["configurations"]:
            quality = row["val_metric"] if row["test_metric"] is None else row["test_metric"]
            echo(
                f"{row['pipeline']:<24}{row['steady_examples_per_s']:>10,.0f}{row['speedup_vs_naive']:>8.2f}{row['train_examples_per_s']:>10,.0f}{row['input_examples_per_s']:>12,.0f}{row['model_examples_per_s']:>10,.0f}{row['stall_pct']:>7.0f}%{quality:>10.4f}"
                f"  {row['verdict']}"
            )
        echo(
            "steady: training relative to the model alone in the same moments; epochs, input"
            " (alone) and model (alone) as measured; examples/s"
        )


if __name__ == "__main__":
    main()
