"""Search for the configuration that trains this model in the least time on this data and machine,
within budgets of memory, disk, preparation and time.

The data has to be prepared (`python -m flows.tuning` does that first). Candidates race in training,
each in its own process; the last line says what the best of them gains. Measurements are kept in
.throughline/tuning/: they answer the same question again, and continue an interrupted search.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.own_code import find_needs, find_own_code
from throughline.config.cli import command_cli
from throughline.config.named_files import find_named_files
from throughline.config.params import Params
from throughline.config.params_file import PARAMS_FILE, read_yaml
from throughline.config.params_insert import insert_pipeline, write_yaml
from throughline.race.configurations import find_worker
from throughline.reporting.tuning_table import print_table, to_markdown
from throughline.results.tuning import TUNED, TunedCandidate, TuningResult
from throughline.shared.errors import Untunable, UserError
from throughline.shared.file_lock import hold
from throughline.shared.layout import Layout
from throughline.shared.machine_lock import hold_machine
from throughline.shared.progress import echo
from throughline.shared.scratch import clear_scratch
from throughline.shared.store_address import check_store_address
from throughline.shared.termination import exit_on_sigterm
from throughline.tuning.budgets import (
    Budgets,
    Limits,
    describe_excess,
    find_limits,
    parse_time,
    read_budgets,
    refuse_several_hosts,
)
from throughline.tuning.journal import Journal
from throughline.tuning.question import (
    FOLDER,
    Question,
    as_written,
    digest_question,
    without_tuned,
)
from throughline.tuning.search import Search, summarize

if TYPE_CHECKING:
    from throughline.tracking.experiments import RunKey

# Fields of a candidate's result that are metrics in MLflow.
MEASURED = (
    "examples_per_s", "seconds", "seconds_low", "seconds_high", "ram_mib", "disk_mib", "prepare_s",
)  # fmt: skip


def tune(params: Params, layout: Layout, budgets: Budgets) -> TuningResult:
    """Answer from an earlier search, or search as soon as this machine has no other measurement."""
    refuse_several_hosts(os.environ)
    params = without_tuned(params)

    def read_folder() -> tuple[Path, TuningResult | None]:
        folder = layout.project / FOLDER / find_key(params, layout, budgets)
        stored, time_s = params.snapshot.stored_fraction, parse_time(budgets.time)
        return folder, read_answer(folder, stored, time_s, find_limits(budgets, layout.root))

    folder, answer = read_folder()
    if answer is None:
        with hold_machine(lambda who: echo(f"waits: {who} is measuring on this machine")):
            # While waiting, the inputs may have changed, or another search may have answered.
            folder, answer = read_folder()
            answer = answer or search(params, layout, budgets, folder)
    if answer.recorded:
        return answer
    with hold(folder / "record.lock", "records a search", lambda who: echo(f"waits: {who}")):
        answer = read_folder()[1] or answer
        if not answer.recorded:
            from throughline.tracking.experiments import make_run_key

            run_key = make_run_key(
                layout.manifest, params.data.path, pipeline="tuning", window=params.window
            )
            run_id = record(run_key, answer, folder)
            answer = replace(answer, recorded=True, mlflow_run_id=run_id)
            answer.write(folder)
    return answer


def find_key(params: Params, layout: Layout, budgets: Budgets) -> str:
    document = read_yaml(layout.root / PARAMS_FILE)
    named = [name for _, name in find_named_files(document) if (layout.root / name).is_file()]
    return digest_question(
        as_written(params, document),
        layout,
        budgets,
        own_files=[*find_own_code(document, layout.root), *named],
        needs=find_needs(layout.root, "train"),
    )


def search(params: Params, layout: Layout, budgets: Budgets, folder: Path) -> TuningResult:
    """Search for the answer to a question, and write it into the question's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    started_at = time.monotonic()
    train, single = params.train, {"processes": 1, "batch_multiple": "auto"}
    journal = Journal(folder)
    question = Question(
        params=replace(params, train=train.model_copy(update=single)),
        root=layout.root,
        budgets=budgets,
        limits=find_limits(budgets, layout.root),
        shared=find_worker(params).multiple > 1,
    )
    try:
        searching = Search(question, journal)
        choice = searching.run()
    finally:
        clear_scratch(layout.root)  # contestants are killed at the end and leave files
    result = summarize(searching, choice, searched_s=time.monotonic() - started_at)
    if find_key(params, layout, budgets) != folder.name:
        journal.forget()
        raise Untunable(
            "data, code or libraries were changed during the search, so its measurements do not"
            " belong together; run the same command again"
        )
    if result.outcome == "undecided":
        journal.forget_disturbed()  # so that the same question is raced again
    result.write(folder)
    return result


def read_answer(folder: Path, stored: float, time_s: float, limits: Limits) -> TuningResult | None:
    """Return the answer of an earlier search, or None if there is none that still holds.

    An answer holds if it is decided, lost no contestants, and had at least this `time_s` and
    `stored`. Its choice must still fit `limits`, and no configuration that it refused may fit now.
    """
    try:
        answer = TuningResult.read(folder)
    except UserError:  # no answer yet, or one of an older form
        return None
    whole = answer.outcome != "undecided" and not answer.lost
    enough = answer.stored >= stored and answer.time_s >= time_s
    chosen, *refused = (describe_excess(one, limits) for one in (answer.needed, *answer.refused))
    return answer if whole and enough and not chosen and all(refused) else None


def record(run_key: RunKey, result: TuningResult, folder: Path) -> str | None:
    """Write a search to MLflow: a run with its result and picture, a child run per raced candidate.

    Returns the run's id; if the store cannot be reached, one line says so, and the id is None.
    """
    from throughline.reporting.tuning_plots import plot_search
    from throughline.tracking.lineage import read_lineage
    from throughline.tracking.recorder import Recorder

    plot_search(result, folder)
    lineage = read_lineage()
    with Recorder(run_key) as parent:
        parent.set_tags(
            {
                "headline": result.sentence,
                "outcome": result.outcome,
                "best": result.chosen,
                "mlflow.note.content": to_markdown(result),
            }
        )
        parent.log_params({"epochs": result.epochs, "chosen": result.config})
        figures = ("rounds", "searched_s", "ceiling_examples_per_s")
        parent.log_metrics({f"tuning/{name}": getattr(result, name) for name in figures})
        for path in (TuningResult.path(folder), folder / TuningResult.PICTURE):
            if path.exists():
                parent.log_artifact(path)
        parent.add_children(
            {
                f"{run_key.pipeline}/{each.name}": _describe(each, result.chosen, lineage)
                for each in result.candidates
                if each.examples_per_s is not None
            }
        )
    return parent.run_id if parent.sent else None


def _describe(each: TunedCandidate, chosen: str, lineage: dict[str, str]) -> dict[str, Any]:
    tags = {
        "pipeline": each.name,
        "family": each.family,
        "dropped": each.dropped,
        "chosen": str(each.name == chosen).lower(),
        **lineage,
    }
    metrics = {f"tuning/{name}": getattr(each, name) for name in MEASURED}
    return {"params": each.config, "metrics": metrics, "tags": tags}


def apply(result: TuningResult, path: Path, before: str) -> None:
    """Add what was found, if anything, to params.yaml, whose text was `before` at the start."""
    if result.outcome != "found":
        undecided = "it is undecided whether another configuration is better"
        why = undecided if result.outcome == "undecided" else "there is nothing better to add"
        echo(f"{path.name} stays as it is: {why}")
        return
    if path.read_text() != before:
        raise Untunable(
            f"{path.name} was changed during the search; search again, or add this by hand below"
            f" `pipelines:`:\n{write_yaml(TUNED, result.config)}"
        )
    added = insert_pipeline(path, TUNED, result.config)
    echo(f"{path.name}: pipelines.{TUNED} {'is added' if added else 'is there already'}")


def declare_options(parser: argparse.ArgumentParser) -> None:
    described = {name: field.description for name, field in Budgets.model_fields.items()}
    for name, metavar in (("ram", "SIZE"), ("disk", "SIZE"), ("prepare", "TIME"), ("time", "TIME")):
        parser.add_argument(f"--{name}", metavar=metavar, help=described[name])
    parser.add_argument("--epochs", type=int, metavar="N", help=described["epochs"])
    parser.add_argument("--allow", action="append", metavar="WHAT", help=described["allow"])
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the result and its picture there, too"
    )
    parser.add_argument(
        "--apply",
        action="store_true",
        help=f"add what is found to params.yaml as pipelines.{TUNED}",
    )


def main() -> None:
    """Search for the best configuration, and print its gain."""
    exit_on_sigterm()  # the block then ends its contestants
    with command_cli(main, declare_options) as (params, options):
        check_store_address()
        budgets = read_budgets(**{name: getattr(options, name) for name in Budgets.model_fields})
        before = PARAMS_FILE.read_text()
        try:
            result = tune(params, Layout(Path()), budgets)
        except (KeyboardInterrupt, SystemExit) as stop:
            echo("stopped; the same command continues from here")
            code = stop.code if isinstance(stop, SystemExit) else 128 + signal.SIGINT
            raise SystemExit(code) from None
        print_table(result)
        if result.outcome == "found":
            echo(write_yaml(TUNED, result.config))
        if options.out:
            from throughline.reporting.tuning_plots import plot_search

            result.write(options.out)
            plot_search(result, options.out)
        try:
            if options.apply:
                apply(result, PARAMS_FILE, before)
        finally:  # report it even if it cannot be added
            echo(result.sentence)


if __name__ == "__main__":
    main()
