"""The report ranks what differs beyond the noise, compares nothing unlike, says what is missing."""

from __future__ import annotations

import html
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tasks.report import report
from tests.support.made_up import made_up
from tests.support.rows import row
from throughline.data.encodings.arrays import pixels_feature
from throughline.data.encodings.labels import labeled
from throughline.data.shards.index import Shard, ShardIndex
from throughline.reporting.checklist import run_checklist
from throughline.reporting.comparing import RESULT_FILES, check_equal, compare, read_all
from throughline.reporting.evaluation_plots import plot_evaluation
from throughline.reporting.plots import plot_steps
from throughline.reporting.ranking import (
    accuracy_warning,
    break_even_epoch,
    drift_pct,
    find_best,
    find_tied,
    ratio_interval,
)
from throughline.reporting.table import ABSENT, comparison_table, to_records
from throughline.results.build import BuildResult, Difference, PlanSummary, name_machine
from throughline.results.comparison import Comparison
from throughline.results.evaluation import Confusion, Evaluation, WorstExample
from throughline.results.profiling import Breakdown, ProfileResult, RoundTimes, Timeline
from throughline.results.train import TrainResult, write_history
from throughline.settings import PipelineConfig
from throughline.shared.errors import MissingInput, UnequalConfigurations
from throughline.shared.layout import Layout

pytestmark = pytest.mark.integration


def test_configurations_whose_ratio_may_be_1_are_tied_whatever_their_verdict():
    rows = [
        row("naive", 0.50, 50, "input-bound"),
        row("a", 0.95, 8, "slightly input-bound"),
        row("b", 0.945, 5),
        row("c", 0.80, 15),
    ]
    assert find_tied(rows) == ["a", "b"]
    assert find_best(rows).pipeline == "b", "of equals, the one that waits least"


def test_a_machine_that_slows_down_during_a_comparison_changes_no_rank_and_no_ratio():
    rows = [
        row("naive", 0.44, 56, "input-bound"),
        row("a", 0.57, 43),
        row("b", 0.89, 11),
        row("c", 0.99, 1),
    ]
    slow = [
        replace(one, reference_examples_per_s=55.0) if number > 1 else one
        for number, one in enumerate(rows)
    ]
    assert find_tied(slow) == find_tied(rows) == ["c"]
    assert ratio_interval(slow[3], slow[0], among=slow) == ratio_interval(
        rows[3], rows[0], among=rows
    )
    assert drift_pct(slow) > 50, "which is shown"


def test_a_snapshot_has_paid_when_what_it_saves_is_more_than_what_it_took():
    naive = row("naive", 1.0, 50, cold_examples_per_s=100, input_examples_per_s=100)
    mapped = replace(naive, pipeline="snapshot", steady_examples_per_s=200, gathers=True)
    cached = replace(
        naive,
        pipeline="cache",
        steady_examples_per_s=200,
        caches=True,
        cold_examples_per_s=100,
        input_examples_per_s=1000,
    )
    assert break_even_epoch(mapped, naive, setup_s=12) == 3, "10 s an epoch without, 5 s with it"
    assert break_even_epoch(cached, naive, setup_s=12) == 2, "9 s more in the first epoch"
    assert break_even_epoch(naive, mapped, setup_s=12) is None
    base = replace(naive, gathers=True)
    assert break_even_epoch(mapped, base, setup_s=12) is None, "the baseline has paid as much"


def test_results_that_differ_by_more_than_chance_are_warned_of():
    scores = [
        row(name, val_metric=score, validation_examples=5000)
        for name, score in (("a", 0.9), ("b", 0.905), ("c", 0.9))
    ]
    assert accuracy_warning(scores) is None
    warning = accuracy_warning([*scores, row("broken", val_metric=0.7, validation_examples=5000)])
    assert "broken 0.7000" in warning
    easy = [row(f"p{at}", val_metric=1.0 - at / 500, validation_examples=500) for at in (0, 0, 1)]
    assert accuracy_warning(easy) is None, "one example of 500 is chance"


def test_the_checklist_passes_what_is_right_and_fails_what_is_not():
    shard = Shard(
        name="a", split="train", records=9, examples=9, bytes=1 << 20, digest="", compression="none"
    )
    schema = labeled(pixels_feature((28, 28, 1)))
    shards = ShardIndex(schema=schema, classes=(), data_digest="", shards=(shard,) * 8)
    chosen = {
        "read": "snapshot",
        "shuffle": {"kind": "global"},
        "map": {"parallel": "cores"},
        "prefetch": 2,
    }
    config = PipelineConfig.model_validate(chosen)
    assert all(point.passed for point in run_checklist(config, shards, row("best", stall=5.0)))
    naive = run_checklist(PipelineConfig(read="shards"), shards, row("naive", stall=60.0))
    assert [point.name for point in naive if not point.passed] == [
        "several shards read at once",
        "maps in parallel, or on whole batches",
        "deterministic work done once",
        "prefetch last",
        "accelerator used above 80 %",
    ]


def strip_tags(page: str) -> str:
    """The text of a page."""
    return re.sub(r"<[^>]*>", "", page)


def write_results(folder: Path, config: dict, rates: tuple[float, ...]) -> None:
    """Put made-up results of every kind into the folder of a configuration."""
    chosen = {
        PlanSummary: {"config": PipelineConfig.model_validate(config).model_dump(mode="json")},
        BuildResult: {"pixel_difference": None, "machine": {"gpus": []}},
        ProfileResult: {"machine": name_machine({"gpus": []})},
        TrainResult: {"metric": "accuracy", "last_epoch": {"val_accuracy": 0.9}, "test": {}},
        RoundTimes: {"relative_rates": rates},
        Timeline: {"lanes": {"train step": [(0.0, 1.5)], "batch": [(0.5, 1.0)]}},
    }
    for kind in (*RESULT_FILES, Timeline):
        path = kind.path(folder)
        replace(made_up(kind), **chosen.get(kind, {})).write(path.parent)
    write_history(folder, [{"epoch": 0.0, "val_loss": 1.0, "val_accuracy": 0.9}])
    plot_steps((1.0, 2.0, 3.0), 1.5, folder / "profile")


@pytest.fixture(scope="module")
def written(arrays, tmp_path_factory) -> Path:
    """A project with shards, and results of two configurations."""
    made = Layout(tmp_path_factory.mktemp("written") / "project")
    made.root.mkdir()
    (made.root / "data").symlink_to(arrays)
    gathered = {"read": "snapshot", "shuffle": {"kind": "global"}}
    write_results(made.results("naive"), {"read": "shards"}, (0.5, 0.51, 0.52))
    write_results(made.results("optimized"), gathered, (0.9, 0.91, 0.92))
    return made.root


@pytest.fixture
def layout(written, tmp_path) -> Layout:
    """A copy of it, to change."""
    return Layout(shutil.copytree(written, tmp_path / "project", symlinks=True))


def read_and_compare(layout):
    return compare(*read_all(["naive", "optimized"], layout), layout)


def test_unlike_work_is_not_compared_unless_it_is_approximate_by_its_own_wish(layout):
    made = BuildResult.read(layout.results("naive"))
    digest = next(iter(made.examples_digests.values()))
    one = replace(made, examples_digests={"train": digest, "validation": digest})
    wrong = replace(digest, digest="00bb")
    other = replace(one, examples_digests={"train": digest, "validation": wrong})
    check_equal({"a": one, "b": one})
    said = rf"of the validation split \(a: {digest.digest[:12]}; b: 00bb\)"
    with pytest.raises(UnequalConfigurations, match=said):
        check_equal({"a": one, "b": other})
    approximate = replace(other, pixel_difference=Difference(mean=1.0, max=9.0, examples=100))
    check_equal({"a": one, "b": approximate})


@pytest.mark.slow
def test_tables_are_no_wider_than_the_text(layout, tmp_path):
    """With the columns of texts, too, which these results have."""
    from tests.support.browser import browsing

    report(["naive", "optimized"], layout, tmp_path / "report")
    with browsing() as page:
        page.goto((tmp_path / "report" / "index.html").as_uri())
        widths = page.locator(".scroll:has(.comparison)").evaluate_all(
            "all => all.map(each => [each.scrollWidth, each.clientWidth])"
        )
    assert len(widths) == 2 and all(needed <= given for needed, given in widths)


def test_configurations_whose_model_is_the_same_have_one_ceiling_in_table_and_picture(layout):
    for name, rate in (("naive", 100.0), ("optimized", 110.0)):
        profiled = ProfileResult.read(layout.results(name))
        replace(profiled, model_examples_per_s=rate, reference_examples_per_s=100.0).write(
            layout.results(name)
        )
    compared = read_and_compare(layout)
    assert [row.model_ceiling_examples_per_s for row in compared.configurations] == [105.0, 105.0]
    shown = [
        record["model alone [examples/s]"] for record in to_records(comparison_table(compared))
    ]
    assert shown == ["105", "105"]
    plan = PlanSummary.read(layout.results("optimized"))
    replace(plan, device_ops=[]).write(layout.results("optimized"))
    compared = read_and_compare(layout)
    ceilings = [row.model_ceiling_examples_per_s for row in compared.configurations]
    assert ceilings == pytest.approx([100, 110])


def test_results_of_different_machines_are_named_and_their_ratio_is_open(layout, tmp_path):
    built = BuildResult.read(layout.results("naive"))
    replace(built, machine={**built.machine, "host": "far"}).write(layout.results("naive"))
    assert read_and_compare(layout).warning is None, "another name is no other machine"
    machine = {"cpu": "Other", "cores": 64, "gpus": ["H100"], "host": "far"}
    replace(built, machine={**built.machine, **machine}).write(layout.results("naive"))
    compared = read_and_compare(layout)
    assert "naive on 64 cores of Other with H100" in compared.warning
    row = compared.configurations[1]
    assert (row.speedup_vs_naive_low, row.speedup_vs_naive_high) == (0, np.inf)
    assert compared.tied == (), "none is marked as the fastest"
    compared.write(tmp_path)
    assert Comparison.read(tmp_path) == compared


def test_a_report_comes_out_without_traces_and_names_what_is_missing(layout, tmp_path):
    with pytest.raises(MissingInput, match=r"plan\.json.*history\.csv.*run `dvc repro`"):
        report(["never_built"], layout, tmp_path / "none")
    Breakdown.path(layout.results("naive")).unlink()
    compared = report(["naive", "optimized", "never_built"], layout, tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    assert set(compared.missing) == {"naive", "never_built"}
    assert "profile/breakdown.json missing" in page
    assert [row.pipeline for row in compared.configurations] == ["optimized"]
    assert Comparison.read(tmp_path / "report") == compared


def test_a_training_that_was_only_finished_has_no_rates_and_is_compared(layout):
    trained = TrainResult.read(layout.results("optimized"))
    replace(trained, throughput=None, step=None, cpu_seconds_per_1k_examples=None).write(
        layout.results("optimized")
    )
    compared = read_and_compare(layout)
    assert compared.configurations[1].train_examples_per_s is None
    _, finished = to_records(comparison_table(compared))
    assert finished["its epochs [examples/s]"] == ABSENT


def test_the_page_says_who_was_disturbed_what_draws_by_class_and_what_the_best_gets_wrong(layout):
    config = {"read": "snapshot", "shuffle": {"kind": "global"}, "sampling": "balanced"}
    write_results(layout.results("optimized"), config, (0.9, 0.91, 0.92))
    profiled = ProfileResult.read(layout.results("optimized"))
    replace(profiled, others_cpu_pct=50.0, idle_cpu_pct=0.0, busiest_other="yes (process 9)").write(
        layout.results("optimized")
    )
    folder = Evaluation.path(layout.results("optimized")).parent
    worst = WorstExample(
        id="17.txt", truth="<ham>", predicted="spam", probability=0.987, loss=4.3, value="a text"
    )
    confusion = Confusion(classes=("<ham>", "spam"), counts=((1, 2), (0, 3)), left_out=0)
    found = Evaluation(split="test", examples=6, confusion=confusion, worst=(worst,), picture=False)
    replace(found, mae_by_target={"load": 0.25, "wind": 12}).write(folder)
    plot_evaluation(layout.results("optimized"), layout.results("optimized") / "profile")
    compared = report(["naive", "optimized"], layout, layout.report)
    assert (compared.best, compared.baseline, compared.missing) == ("optimized", "naive", {})
    page = (layout.report / "index.html").read_text()
    assert "".join(compared.headline.split("`")) in html.unescape(strip_tags(page))
    assert all(f'alt="step times of {one}"' in page for one in ("naive", "optimized"))
    for picture in ("timelines.svg", "throughput.svg", "histories.svg", "throughput.csv"):
        assert (layout.report / "plots" / picture).stat().st_size
    assert "What optimized gets wrong" in page
    shown = (
        r'<img src="data:image/png;base64,\w[^"]+" alt="sample pictures of the training split, a'
    )
    assert re.search(shown, page)
    assert "which classes optimized takes for which" in page
    assert all(text in page for text in ("17.txt", "a text", "&lt;ham&gt;", "0.987"))
    assert "Mean absolute error of each target on the test split: load 0.25, wind 12." in page
    text = strip_tags(page)
    assert "optimized was disturbed by yes (process 9)." in text
    assert "python -m flows.comparison --measure-again optimized does it" in text
    assert "how often each is drawn depends on its class in optimized." in text
