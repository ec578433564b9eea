"""The report ranks what differs beyond the noise, compares nothing unlike, says what is missing;
its pictures show what they are given, and the same values give the same file.
"""

import html
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tasks.race import read_studies
from tasks.report import report
from tests.support.made_up import made_up
from tests.support.races import race_result, raced, rounds
from tests.support.rows import row
from throughline.data.encodings.arrays import pixels_feature
from throughline.data.encodings.labels import labeled
from throughline.data.shards.index import Shard, ShardIndex
from throughline.reporting.checklist import run_checklist
from throughline.reporting.comparing import RESULT_FILES, check_equal
from throughline.reporting.comparison_plots import plot_histories, plot_throughput
from throughline.reporting.evaluation_plots import plot_evaluation, plot_images
from throughline.reporting.plots import TRAIN_LANE, WAITING_LANE, plot_timelines
from throughline.reporting.ranking import Ranking, accuracy_warning
from throughline.reporting.table import ABSENT, comparison_table, to_records
from throughline.reporting.tuning_plots import MOST_SHOWN, list_measured, plot_search
from throughline.results.build import BuildResult, Difference, PlanSummary
from throughline.results.comparison import Comparison
from throughline.results.evaluation import Confusion, Evaluation
from throughline.results.profiling import Breakdown, Timeline
from throughline.results.race import OWN, Cost, RaceResult
from throughline.results.receipt import LOSSES, Receipt
from throughline.results.train import TrainResult, write_history
from throughline.results.tuning import TunedCandidate, TuningResult
from throughline.settings import PipelineConfig
from throughline.shared.errors import MissingInput, UnequalConfigurations
from throughline.shared.layout import Layout

pytestmark = pytest.mark.integration
GATHERED = {"read": "snapshot", "shuffle": {"kind": "global"}}
RACED = {"naive": raced(50.0, 50, "input-bound"), "optimized": raced(90.0, 10)}


def test_configurations_whose_ratio_may_be_1_are_tied_whatever_their_verdict():
    a, b = raced(95.0, 8, "slightly input-bound"), raced(94.8, 5)
    configurations = {**RACED, "optimized": raced(80.0, 15), "a": a, "b": b}
    ranking = Ranking(race_result(configurations, spread={"a": 0.01, "b": 0.01}))
    assert ranking.tied == ["a", "b"]
    assert ranking.best == "b", "of equals, the one that waits least"


def test_one_whose_figures_contradict_each_other_has_no_place():
    odd = raced(500.0, 0, "undecided", contradiction="500, its input alone made 20")
    ranking = Ranking(race_result({"naive": raced(50.0), "odd": odd, "a": raced(95.0)}))
    assert (ranking.best, ranking.tied, ranking.winners) == ("a", ["a"], ["a"])
    assert ranking.undecided == ["odd"]


def test_who_has_not_met_the_baseline_is_compared_by_both_intervals():
    result = race_result({"naive": raced(50.0), "late": raced(100.0)})
    met = ({"naive": [50.0] * 5}, {"late": [100.0] * 5})
    apart = [one for rates in met for one in rounds(rates, phase=OWN)]
    gain = Ranking(replace(result, rounds=tuple(apart))).gains["late"]
    assert (gain.low, gain.value, gain.high) == pytest.approx((98 / 51, 2.0, 102 / 49))


def test_a_snapshot_has_paid_when_what_it_saves_is_more_than_what_it_took():
    def paid(race: RaceResult, name: str, **prepare_s: float) -> int | None:
        return Ranking(race).break_even(name, examples=1000, prepare_s=prepare_s)

    cached = raced(200.0, cost=Cost(fill_s=14.0))
    race = race_result({"naive": raced(100.0), "snapshot": raced(200.0), "cache": cached})
    assert paid(race, "snapshot", snapshot=12.0) == 3, "10 s an epoch without, 5 s with it"
    assert paid(race, "snapshot", snapshot=12.0, naive=12.0) is None, "both read what it took"
    assert paid(race, "cache") == 2, "4 s more in the first epoch, 5 s less in each other one"
    assert paid(race, "snapshot") is paid(race, "naive") is None, "nothing to pay back"
    slower = race_result({"naive": raced(100.0), "snapshot": raced(90.0)})
    assert paid(slower, "snapshot", snapshot=1.0) is None


def test_results_that_differ_by_more_than_chance_are_warned_of():
    scores = [row("a", val_metric=0.9), row("b", val_metric=0.905), row("c", val_metric=0.9)]
    assert accuracy_warning(scores) is None
    assert "broken 0.7000" in accuracy_warning([*scores, row("broken", val_metric=0.7)])
    easy = [row(f"p{at}", val_metric=1.0 - at / 500, validation_examples=500) for at in (0, 0, 1)]
    assert accuracy_warning(easy) is None, "one example of 500 is chance"


def test_the_checklist_passes_what_is_right_and_fails_what_is_not():
    shard = replace(made_up(Shard), split="train", bytes=1 << 20)
    schema = labeled(pixels_feature((28, 28, 1)))
    shards = ShardIndex(schema=schema, classes=(), data_digest="", shards=(shard,) * 8)
    chosen = {**GATHERED, "map": {"parallel": "cores"}, "prefetch": 2}
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


def write_results(folder: Path, config: dict) -> None:
    """Put made-up results of every kind into the folder of a configuration."""
    chosen = {
        PlanSummary: {"config": PipelineConfig.model_validate(config).model_dump(mode="json")},
        BuildResult: {"pixel_difference": None},
        TrainResult: {"metric": "accuracy", "last_epoch": {"val_accuracy": 0.9}, "test": {}},
        Timeline: {"lanes": {"train step": [(0.0, 1.5)], "batch": [(0.5, 1.0)]}},
    }
    for kind in (*RESULT_FILES, Timeline):
        path = kind.path(folder)
        replace(made_up(kind), **chosen.get(kind, {})).write(path.parent)
    write_history(folder, [{"epoch": 0.0, "val_loss": 1.0, "val_accuracy": 0.9}])
    np.save(folder / LOSSES, np.float32([3, 2, 4, 2]))


@pytest.fixture(scope="module")
def written(arrays, tmp_path_factory) -> Path:
    """A project with shards, and results of two configurations that have raced."""
    made = Layout(tmp_path_factory.mktemp("written") / "project")
    made.root.mkdir()
    (made.root / "data").symlink_to(arrays)
    write_results(made.results("naive"), {"read": "shards"})
    write_results(made.results("optimized"), GATHERED)
    race_result(RACED).write(made.race)
    return made.root


@pytest.fixture
def layout(written, tmp_path) -> Layout:
    """A copy of it, to change."""
    return Layout(shutil.copytree(written, tmp_path / "project", symlinks=True))


def make_report(layout, folder, names=("naive", "optimized")):
    """The result of a comparison, its page, and the text of that."""
    compared = report([*names], layout, folder)
    page = (folder / "index.html").read_text()
    return compared, page, re.sub(r"<[^>]*>", "", page)


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


def test_a_configuration_that_has_changed_since_its_training_does_not_race(layout):
    changed = {"naive": PipelineConfig(read="shards"), "optimized": PipelineConfig(prefetch=2)}
    studies, lacking = read_studies(changed, layout)
    assert [*studies] == ["naive"]
    said = "has changed in params.yaml since it was trained; run `dvc repro profile@optimized`"
    assert lacking == {"optimized": f"optimized {said}"}


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


def test_a_configuration_that_was_lost_in_the_race_is_left_out_and_named(layout, tmp_path):
    lost = {"optimized": "was killed by SIGKILL"}
    race_result({"naive": RACED["naive"]}, lost=lost).write(layout.race)
    compared, _, text = make_report(layout, tmp_path / "report")
    assert (compared.missing, compared.measure_again) == (lost, ("optimized",))
    again = "Race it again with python -m flows.comparison --measure-again optimized."
    assert f"optimized is left out: was killed by SIGKILL. {again}" in text
    assert "Undecided: " not in text
    assert [row.pipeline for row in compared.configurations] == ["naive"]
    race_result({}, lost={"naive": "was killed"}).write(layout.race)
    with pytest.raises(MissingInput, match="no raced configuration: was killed; run `dvc repro -f"):
        make_report(layout, tmp_path / "none")


def test_a_report_comes_out_without_traces_and_names_what_is_missing(layout, tmp_path):
    with pytest.raises(MissingInput, match=r"plan\.json.*history\.csv.*run `dvc repro`"):
        report(["never_built"], layout, tmp_path / "none")
    Breakdown.path(layout.results("naive")).unlink()
    names = ["naive", "optimized", "never_built"]
    compared, page, _ = make_report(layout, tmp_path / "report", names)
    assert set(compared.missing) == {"naive", "never_built"}
    assert "profile/breakdown.json missing" in page
    assert [row.pipeline for row in compared.configurations] == ["optimized"]
    assert Comparison.read(tmp_path / "report") == compared


def test_a_training_that_was_only_finished_has_no_rates_and_is_compared(layout, tmp_path):
    trained = TrainResult.read(layout.results("optimized"))
    finished = replace(trained, throughput=None, step=None, cpu_seconds_per_1k_examples=None)
    finished.write(layout.results("optimized"))
    compared, *_ = make_report(layout, tmp_path / "report")
    assert compared.configurations[1].train_examples_per_s is None
    assert to_records(comparison_table(compared))[1]["its epochs [examples/s]"] == ABSENT


def test_the_page_says_who_disturbed_what_draws_by_class_and_what_the_best_gets_wrong(layout):
    write_results(layout.results("optimized"), {**GATHERED, "sampling": "balanced"})
    undecided = {**RACED, "optimized": raced(90.0, 18, "undecided", gain=3.0)}
    by = "yes (process 9) took 40 % of the cores in 3 of 5 rounds"
    race_result(undecided, disturbed_by=by).write(layout.race)
    folder = Evaluation.path(layout.results("optimized")).parent
    confusion = Confusion(classes=("<ham>", "spam"), counts=((1, 2), (0, 3)), left_out=0)
    found = Evaluation(split="test", examples=6, confusion=confusion)
    replace(found, mae_by_target={"load": 0.25, "wind": 12}).write(folder)
    plot_evaluation(layout.results("optimized"), layout.results("optimized") / "profile")
    compared, page, text = make_report(layout, layout.report)
    assert (compared.best, compared.baseline, compared.missing) == ("optimized", "naive", {})
    assert "".join(compared.headline.split("`")) in html.unescape(text)
    for picture in ("timelines.svg", "throughput.svg", "histories.svg", "throughput.csv"):
        assert (layout.report / "plots" / picture).stat().st_size
    assert re.search(r'src="data:image/png;base64,\w[^"]+" alt="sample pictures of the train', page)
    assert "which classes optimized takes for" in page
    for said in (
        "What optimized gets wrong",
        "--pipeline optimized 2/1 loss 4, 2 around it",
        "Mean absolute error of each target on the test split: load 0.25, wind 12.",
        f"During the race {by}.",
        "Undecided: optimized. python -m flows.comparison --measure-again optimized races all",
        "how often each is drawn depends on its class in optimized.",
    ):
        assert said in text
    assert "3.00× as fast" not in text, "the fix is to race again"


def texts_of(stem: Path) -> list[str]:
    """The texts of an SVG file; its PNG must be a picture."""
    with Image.open(stem.with_suffix(".png")) as picture:
        assert min(picture.size) > 100
    return re.findall(r"<text[^>]*>(.*?)</text>", stem.with_suffix(".svg").read_text(), re.DOTALL)


@pytest.mark.slow
def test_timelines_end_where_the_shortest_does(tmp_path):
    long_name = "parse_decode_resize_random_crop_flip"
    within = {TRAIN_LANE: [(0.0, 3.0)], WAITING_LANE: [(1.0, 2.0)], long_name: [(0.0, 2.0)]}
    for stem, end in (("one", 40.0), ("other", 80.0)):
        longer = {TRAIN_LANE: [(0.0, 2.0), (5.0, end)]}
        plot_timelines({"naive: input-bound": within, "b": longer}, tmp_path / stem)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
    texts = texts_of(tmp_path / "one")
    assert {"naive: input-bound", "train step", "waiting for input", "milliseconds"} <= set(texts)
    assert f"{long_name[:25]}…" in texts and long_name not in texts


@pytest.mark.parametrize(("fed", "noted"), [(129.0, False), (12_345.0, True)])
def test_a_ceiling_far_beyond_any_training_is_an_arrow_with_its_value(tmp_path, fed, noted):
    """The axis ends at 1.3 × 100 examples per second; epochs that do not compare do not count."""
    start = {"train_examples_per_s": 999.0, "epochs_doubt": "its one epoch, with the start"}
    rows = [row("naive", 50.0, input_examples_per_s=fed), row("optimized", 98.0, **start)]
    plot_throughput(rows, tmp_path)
    texts = texts_of(tmp_path / "throughput")
    assert {"naive", "optimized", "50", "98", "examples per second"} <= set(texts)
    assert (f"{fed:,.0f} ▶" in texts) is noted
    assert "400 ▶" in texts


@pytest.mark.slow
def test_histories_show_the_loss_and_the_metric_of_each_configuration(tmp_path):
    epochs = [{"epoch": one, "val_loss": 1 / (one + 1), "val_accuracy": 0.5} for one in range(3)]
    plot_histories({"naive": epochs, "optimized": epochs[:2]}, "accuracy", tmp_path / "both")
    texts = texts_of(tmp_path / "both")
    titles = [text for text in texts if text.startswith("validation")]
    assert titles == ["validation loss", "validation accuracy"]
    assert {"naive", "optimized", "epochs"} <= set(texts)
    unnamed = [{"epoch": 0.0, "train_loss": 1.0, "val_score": 0.5}]  # of a test step of one's own
    plot_histories({"naive": unnamed}, "accuracy", tmp_path / "none")
    assert not list(tmp_path.glob("none*"))


def test_confused_classes_losses_and_the_images_of_a_batch_are_drawn(tmp_path):
    confusion = Confusion(classes=("a coat", "a shirt"), counts=((9, 21), (0, 0)), left_out=0)
    found = Evaluation(split="test", examples=30, confusion=confusion)
    found.write(tmp_path / "p" / "evaluation")
    losses = np.linspace(2, 1, 3000, dtype=np.float32)
    losses[[700, 1500]] += 5
    np.save(tmp_path / "p" / LOSSES, losses)
    replace(made_up(Receipt), steps_per_epoch=1000).write(tmp_path / "p")
    plot_evaluation(tmp_path / "p", tmp_path)
    assert {"1/701", "2/501", "step", "loss"} <= set(texts_of(tmp_path / "losses"))
    shown = set(texts_of(tmp_path / "confusion"))
    assert {"a coat", "a shirt", "9", "21", "true", "predicted"} <= shown
    row = {"label": "a coat", "predicted": "a shirt", "probability": "0.870"}
    for channels in (1, 3):
        pixels = np.arange(7 * 8 * 6 * channels, dtype=np.uint8).reshape(7, 8, 6, channels)
        plot_images([row] * 7, pixels, tmp_path / "images")
        drawn = (tmp_path / "images.svg").read_text()
        assert drawn.count("<image ") == 7 and "→ a shirt 0.870" in drawn
    with pytest.raises(MissingInput, match="run `dvc repro train@other`"):
        plot_evaluation(tmp_path / "other", tmp_path)


SLOW = replace(made_up(TunedCandidate), name="slow", seconds=90.0, seconds_low=80.0)
FAST = replace(SLOW, name="fast", seconds=12.3, seconds_low=None, seconds_high=None, ram_mib=None)
REFUSED = replace(FAST, name="refused", seconds=None)
ONCE = replace(SLOW, name="once", seconds=80.0, seconds_low=0.0, seconds_high=math.inf)
SEEN = [SLOW, REFUSED, FAST, ONCE]
FOUND = replace(made_up(TuningResult), candidates=SEEN, chosen="fast", epochs=1200)


@pytest.mark.slow
def test_the_picture_of_a_search_names_who_was_measured_and_how_long_it_takes(tmp_path):
    plot_search(FOUND, tmp_path)
    texts = texts_of(tmp_path / "tune")
    named = {"slow", "90.0", "fast", "12.3", "once", "80.0"}
    assert {*named, "preparation and 1,200 epochs [s]"} <= set(texts)
    assert "refused" not in texts
    (tmp_path / "none").mkdir()
    plot_search(replace(FOUND, candidates=[REFUSED]), tmp_path / "none")
    assert not list((tmp_path / "none").iterdir()), "nothing was measured"


def test_the_choice_of_a_search_is_shown_however_many_were_faster():
    many = [replace(FAST, name=str(number), seconds=float(number)) for number in range(99)]
    names = [each.name for each in list_measured(replace(FOUND, candidates=many, chosen="77"))]
    assert names == [*map(str, range(MOST_SHOWN)), "77"]
