"""Stage 7, report: put all configurations side by side, check that they did the same work, and write one page about it.

Writes report/summary.json, report/plots/ and report/index.html, a single file that needs no network.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from tasks.errors import MissingInput, UnequalConfigurations
from tasks.evidence.plots import plot_throughput
from tasks.files import read_json, resumable_folder, write_json
from tasks.progress import say
from tasks.stage import Layout, door

BASELINE = "naive"
INPUTS = ("plan.json", "input.json", "train.json", "run.json", "profile/breakdown.json", "profile/diagnosis.json")


def report(names: Sequence[str], layout: Layout, out: Path) -> dict[str, Any]:
    """Compare the configurations `names` from their result files and write the report into `out`.

    Raises:
      MissingInput: a configuration has not been built, trained and profiled.
      UnequalConfigurations: two configurations delivered different examples; nothing is compared.
    """
    results = {name: _results(layout.run(name)) for name in names}
    _check_equal(results)
    rows = _rows(results)
    summary = {
        "headline": headline(rows),
        "best": best(rows)["pipeline"],
        "tied": tied(rows),
        "drift_pct": drift_pct(rows),
        "baseline": _baseline(rows)["pipeline"],
        "metric": rows[0]["metric"],
        "machine": results[names[0]]["input"]["machine"],
        "examples_digest": next((r["input"]["equality"]["digest"] for r in results.values() if "difference" not in r["input"]), "none"),
        "data_digest": results[names[0]]["plan"]["data_digest"],
        "configurations": rows,
    }
    with resumable_folder(out, key="report") as folder:
        (folder / "plots").mkdir(exist_ok=True)
        plot_throughput(rows, folder / "plots")
        pd.DataFrame(rows).to_csv(folder / "plots" / "throughput.csv", index=False)
        (folder / "index.html").write_text(_page(summary, results, layout, folder))
        write_json(folder / "summary.json", summary)
    return summary


def headline(rows: Sequence[Mapping[str, Any]]) -> str:
    """The result in one sentence."""
    top, base = best(rows), _baseline(rows)
    if top is base:
        return f"{base['pipeline']} is the fastest of {len(rows)} configurations; training is {base['verdict']}."
    names = tied(rows)
    subject = top["pipeline"] + " trains" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} (tied) train up to"
    gain = top["train_examples_per_s"] / base["train_examples_per_s"]
    rest = "nothing more to gain from input" if top["verdict"] == "compute-bound" else f"{top['stall_pct']:.0f} % of a step is still lost to input"
    return f"{subject} {gain:.1f}× as fast as {base['pipeline']}; training is {top['verdict']}, {rest}."


def best(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The configuration with the highest training throughput."""
    return max(rows, key=lambda row: row["train_examples_per_s"])


def drift_pct(rows: Sequence[Mapping[str, Any]]) -> float:
    """How much the machine's own speed varied during the comparison.

    The model alone does the same work for every configuration, so its spread, (max − min) / median, is drift and nothing else.
    """
    rates = [row["model_examples_per_s"] for row in rows]
    return 100 * (max(rates) - min(rates)) / statistics.median(rates)


def tied(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The best configuration and those that it does not beat by more than the drift, with the same verdict; in given order."""
    top = best(rows)
    least = top["train_examples_per_s"] * (1 - drift_pct(rows) / 100)
    return [row["pipeline"] for row in rows if row["train_examples_per_s"] >= least and row["verdict"] == top["verdict"]]


def _baseline(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((row for row in rows if row["pipeline"] == BASELINE), rows[0])


def _results(folder: Path) -> dict[str, Any]:
    missing = [name for name in INPUTS if not (folder / name).exists()]
    if missing:
        raise MissingInput(f"{folder}: {', '.join(missing)} missing; run `dvc repro` for this configuration first")
    return {Path(name).stem: read_json(folder / name) for name in INPUTS}


def _check_equal(results: Mapping[str, Mapping[str, Any]]) -> None:
    digests: dict[str, list[str]] = {}
    for name, result in results.items():
        if "difference" in result["input"]:
            continue  # approximate by its own wish: the difference is shown
        digests.setdefault(result["input"]["equality"]["digest"], []).append(name)
    if len(digests) > 1:
        groups = "; ".join(f"{', '.join(names)}: {digest[:12]}" for digest, names in digests.items())
        raise UnequalConfigurations(f"the configurations did not deliver the same examples ({groups}); their throughputs cannot be compared")


def _rows(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per configuration, in the order of params.yaml."""
    base = next((results[name] for name in results if name == BASELINE), next(iter(results.values())))
    return [
        {
            "pipeline": name,
            "plan": result["plan"]["plan"],
            "train_examples_per_s": result["train"]["throughput"]["train_examples_per_s"],
            "input_examples_per_s": result["input"]["throughput"]["input_examples_per_s"],
            "model_examples_per_s": result["breakdown"]["model_examples_per_s"],
            "attainable_examples_per_s": result["diagnosis"]["attainable_examples_per_s"],
            "speedup_vs_naive": result["train"]["throughput"]["train_examples_per_s"] / base["train"]["throughput"]["train_examples_per_s"],
            "stall_pct": result["diagnosis"]["stall_pct"],
            "wait_ms_p50": result["breakdown"]["wait_ms_p50"],
            "first_batch_s": result["input"]["throughput"]["first_batch_s"],
            "epoch_gap_s": result["input"]["throughput"]["epoch_gap_s"],
            "step_ms_p50": result["train"]["step"]["ms_p50"],
            "step_ms_p95": result["train"]["step"]["ms_p95"],
            "rss_mb_max": result["train"]["usage"]["rss_mb_max"],
            "cpu_seconds_per_1k_examples": result["train"]["cpu_seconds_per_1k_examples"],
            "gpu_utilization_pct_mean": result["train"]["usage"]["gpu_utilization_pct_mean"],
            "metric": result["train"]["metric"],
            "val_metric": result["train"]["train"][f"val_{result['train']['metric']}"],
            "test_metric": result["train"].get("test", {}).get(result["train"]["metric"]),
            "difference_mean": result["input"].get("difference", {}).get("mean"),
            "difference_max": result["input"].get("difference", {}).get("max"),
            "verdict": result["diagnosis"]["verdict"],
            "cause": result["diagnosis"]["cause"],
            "fix": result["diagnosis"]["fix"],
            "mlflow_run_id": result["run"]["mlflow_run_id"],
        }
        for name, result in results.items()
    ]


def _page(summary: Mapping[str, Any], results: Mapping[str, Any], layout: Layout, folder: Path) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "evidence"), autoescape=select_autoescape(), undefined=StrictUndefined, trim_blocks=True
    )
    timelines = {name: _svg(layout.run(name) / "profile" / "timeline.svg") for name in results}
    return environment.get_template("report.html").render(
        summary=summary, chart=_svg(folder / "plots" / "throughput.svg"), timelines=timelines, results=results
    )


def _svg(path: Path) -> str:
    """The picture without its XML head, ready to stand inside a page; empty where there is none."""
    text = path.read_text() if path.exists() else ""
    return text[text.find("<svg") :] if "<svg" in text else ""


def main() -> None:
    """Put all configurations side by side and write report/."""
    with door(main) as params:
        summary = report(list(params.pipelines), Layout(), Layout().report)
        say(summary["headline"])
        columns = f"{'configuration':<24}{'training':>10}{'input':>12}{'model':>10}{'×naive':>8}{'stall':>8}{summary['metric']:>10}  verdict"
        say(columns)
        for row in summary["configurations"]:
            quality = row["val_metric"] if row["test_metric"] is None else row["test_metric"]
            say(
                f"{row['pipeline']:<24}{row['train_examples_per_s']:>10,.0f}{row['input_examples_per_s']:>12,.0f}"
                f"{row['model_examples_per_s']:>10,.0f}{row['speedup_vs_naive']:>8.2f}{row['stall_pct']:>7.0f}%{quality:>10.4f}  {row['verdict']}"
            )
        say("training, input (alone) and model (alone) in examples/s")


if __name__ == "__main__":
    main()
