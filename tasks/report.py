"""The report stage: compare all configurations side by side, check that they did the same work, and
write report/: summary.json, plots/ and index.html, a single page that needs no network.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from tasks.earlier import check_identity
from throughline import reporting
from throughline.config.cli import stage_cli
from throughline.data.glance import describe_sheet, tabulate, tabulate_columns, to_rows
from throughline.data.manifest import read_manifest
from throughline.measurement.spikes import find_spikes
from throughline.reporting.comparing import RunResults, compare, read_all
from throughline.reporting.comparison_plots import plot_histories, plot_throughput
from throughline.reporting.plots import plot_timelines
from throughline.reporting.table import comparison_table, to_text
from throughline.results.comparison import Comparison
from throughline.results.evaluation import Evaluation
from throughline.results.profiling import Timeline
from throughline.results.race import RaceResult
from throughline.results.receipt import Receipt, name_step, read_losses
from throughline.shared.files import atomic_folder
from throughline.shared.layout import Layout, from_here
from throughline.shared.progress import echo, echo_problem, echo_result

PICTURES = ("throughput", "timelines", "histories")


def report(names: Sequence[str], layout: Layout, out: Path) -> Comparison:
    """Compare the configurations by their result files, and write the report into `out`.

    Configurations that lack results are named. Raises as `read_all` and `compare` do.
    """
    results, missing = read_all(names, layout)
    raced = RaceResult.read(layout.race)
    comparison = compare(results, missing, raced, layout)
    shown = {row.pipeline: results[row.pipeline] for row in comparison.configurations}
    with atomic_folder(out) as folder:
        plots = folder / "plots"
        plots.mkdir()
        plot_throughput(comparison.configurations, plots)
        folders = {one: layout.results(one) for one in (comparison.baseline, comparison.best)}
        lanes = {
            name: Timeline.read(results).lanes
            for name, results in folders.items()
            if Timeline.path(results).exists()
        }
        if lanes:
            plot_timelines(lanes, plots / "timelines")
        histories = {name: result.history for name, result in shown.items()}
        plot_histories(histories, comparison.metric, plots / "histories")
        figures = pd.DataFrame([vars(row) for row in comparison.configurations])
        figures.drop(columns=["held_out"]).to_csv(plots / "throughput.csv", index=False)
        page = _page(comparison, raced, shown, layout, folder)
        (folder / "index.html").write_text(page, encoding="utf-8")
        comparison.write(folder)
    return comparison


def _page(
    comparison: Comparison,
    race: RaceResult,
    results: Mapping[str, RunResults],
    layout: Layout,
    folder: Path,
) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(reporting.__file__).parent),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    pictures = {
        name: {
            kind: _picture(layout.results(name) / "profile" / f"{kind}.svg")
            for kind in ("timeline", "confusion", "losses")
        }
        for name in results
    }
    table, best = comparison_table(comparison), layout.results(comparison.best)
    known = (layout.manifest / "manifest.json").exists()
    data = read_manifest(layout.manifest) if known else None
    glance = to_rows(tabulate(data)) if data else []
    columns = tabulate_columns(data) if data else None
    shown = list(enumerate(table.columns))
    return environment.get_template("report.html").render(
        summary=comparison,
        race=race,
        table=table,
        essential=[number for number, column in shown if column.essential],
        further=[number for number, column in shown if number == 0 or not column.essential],
        plots={kind: _picture(folder / "plots" / f"{kind}.svg") for kind in PICTURES},
        pictures=pictures,
        results=results,
        glance=glance,
        columns=to_rows(columns) if columns is not None else [],
        sheet=_picture(layout.sheet, "png"),
        sheet_shows=describe_sheet(glance),
        problems=data.stats["problems"] if data else [],
        evaluation=Evaluation.read(best),
        spikes=find_spikes(read_losses(best)),
        steps_per_epoch=Receipt.read(best).steps_per_epoch,
        name_step=name_step,
    )


def _picture(path: Path, kind: str = "svg+xml") -> str:
    """Return the picture as a data URL, in which browsers run no scripts; empty if none exists."""
    return (
        f"data:image/{kind};base64,{b64encode(path.read_bytes()).decode()}" if path.exists() else ""
    )


def main() -> None:
    """Compare all configurations side by side, and write report/."""
    with stage_cli(main) as params:
        check_identity()
        comparison = report(list(params.pipelines), Layout(), Layout().report)
        echo(to_text(comparison_table(comparison)))
        echo(comparison.headline)
        count = len(comparison.configurations)
        what = "1 configuration" if count == 1 else f"{count} configurations side by side"
        echo_result(f"{what}: {from_here(Layout().report / 'index.html')}")
        if comparison.warning:
            echo_problem(comparison.warning)
        for name, why in comparison.missing.items():
            echo_problem(f"{name} is left out: {why}")


if __name__ == "__main__":
    main()
