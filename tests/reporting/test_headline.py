"""The headline of a comparison and its table."""

import re
from dataclasses import replace

import pytest
from rich.console import Console

from flows.orchestration.artifacts import to_markdown
from tests.support.made_up import made_up
from tests.support.races import race_result, raced
from tests.support.rows import comparison, row
from throughline.reporting import tuning_table
from throughline.reporting.headline import write_headline
from throughline.reporting.ranking import Ranking
from throughline.reporting.table import ABSENT, comparison_table, to_records, to_text
from throughline.results.train import HeldOut, standard_error
from throughline.results.tuning import TunedCandidate, TuningResult


def headline_of(result, **rows):
    """The sentence about a race; `rows` are fields of the rows of its configurations."""
    shown = {name: row(name, **rows.get(name, {})) for name in result.configurations}
    return write_headline(Ranking(result), shown)


NAIVE = raced(25.0, 75, "input-bound")
FAST = raced(98.0, 3)
WAITS = "Training waits for its input 75 % of the time."
SAME = "same examples, same accuracy"
ENDS = f"{WAITS} `optimized` ends that: 3.9× as fast (3.9 to 3.9), {SAME}"
NONE = "No configuration trains faster than `naive` beyond the noise"
SENTENCES = {
    "a winner ends the waiting": ({"naive": NAIVE, "optimized": FAST}, f"{ENDS}."),
    "a winner leaves some of it":
      ({"naive": NAIVE, "optimized": raced(50.0, 30, "input-bound")},
       f"{WAITS} `optimized` brings that to 30 %: 2.0× as fast (2.0 to 2.0), {SAME}."),
    "a winner may leave some of it":
      ({"naive": NAIVE, "optimized": raced(50.0, 20, "undecided")},
       f"{WAITS} `optimized` is 2.0× as fast (2.0 to 2.0), {SAME}; how long it still waits is"
       " undecided, 18 to 22 %."),
    "a winner waits longer":
      ({"naive": NAIVE, "optimized": raced(80.0, 80, "input-bound")},
       f"{WAITS} `optimized` is 3.2× as fast (3.2 to 3.2), {SAME}."),
    "a faster model is no better input":
      ({"naive": raced(70.0, 5), "optimized": FAST},
       "Training waits for its input 5 % of the time only, but `optimized` is 1.4× as fast (1.4 to"
       f" 1.4), {SAME}."),
    "equals are named":
      ({"naive": NAIVE, "optimized": FAST, "a": raced(98.0, 5)},
       f"{ENDS}; `a` is as fast within the noise."),
    "many equals are counted":
      ({"naive": NAIVE, "optimized": FAST, **dict.fromkeys("abcde", FAST)},
       f"{ENDS}; `a`, `b` and 3 others are as fast within the noise."),
    "what is open is named":
      ({"naive": NAIVE, "snapshot": raced(80.0, 5), "open": raced(30.0, 40, "undecided")},
       f"{WAITS} `snapshot` ends that: 3.2× as fast (3.2 to 3.2), {SAME}; whether `open` is faster"
       " than `naive` is undecided."),
    "a baseline that contradicts itself":
      ({"naive": raced(25.0, 75, "undecided", contradiction="25, its epochs 90"), "a": FAST},
       "How the configurations compare is undecided, since the figures of `naive` contradict each"
       " other: 25, its epochs 90."),
    "another one that contradicts itself":
      ({"naive": NAIVE, "a": raced(75.0, 25, "undecided", contradiction="75, its epochs 50")},
       "Whether anything trains faster than `naive` is undecided, since the figures of `a`"
       " contradict each other."),
    "nothing is faster, for the model takes the time":
      ({"naive": raced(98.0, 5), "best": raced(98.0, 4)},
       f"{NONE}: training waits for its input only 5 % of the time; the model takes the rest."),
    "nothing is faster, and training waits":
      ({"naive": raced(98.0, 60, "input-bound"), "best": raced(98.0, 4)},
       f"{NONE}: training waits for its input 60 % of the time, and none of these configurations"
       " changes that."),
    "nothing is faster, and training may wait":
      ({"naive": raced(98.0, 20, "undecided"), "best": raced(98.0, 4)},
       f"{NONE}: whether training waits for its input is undecided (18 to 22 % of the time)."),
    "nothing is certain":
      ({"naive": NAIVE, "open": raced(26.0, 50, "undecided")},
       "Whether anything trains faster than `naive` is undecided: `open` is 0.5 to 5.1× as fast."),
    "one that waits for nothing":
      ({"optimized": FAST},
       "`optimized` trains 98 examples per second and waits for its input 3 % of the time: its"
       " model takes the rest, so there is nothing to gain from the input."),
    "one that waits":
      ({"naive": NAIVE},
       "`naive` waits for its input 75 % of the time: it trains 25 examples per second of the 100"
       " that its model could take."),
    "one that may wait":
      ({"naive": raced(50.0, 20, "undecided")},
       "`naive` trains 50 examples per second; whether it waits for its input is undecided (18 to"
       " 22 % of the time)."),
    "one that contradicts itself":
      ({"naive": raced(50.0, 20, "undecided", contradiction="50, its epochs 90")},
       "How fast `naive` trains, and whether it waits for its input, is undecided: 50, its epochs"
       " 90."),
}  # fmt: skip


@pytest.mark.parametrize(("configurations", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_the_sentence_of_each_outcome(configurations, sentence):
    noisy = {"open": 1.2, "best": 0.004}
    assert headline_of(race_result(configurations, spread=noisy)) == sentence


WINDOWS = HeldOut(
    split="test", examples=40, constant_metric=0.1, constant_stderr=standard_error(0.1, 20_000)
)
OF_ERRORS = {"metric": "mae", "examples": 5000, "val_metric": 4.929, "mixed_examples": 250}


@pytest.mark.parametrize(
    ("naive", "fast", "end"),
    [
        ({}, {"val_metric": 0.7}, "same examples, accuracy 0.7 instead of 0.9."),
        ({"held_out": WINDOWS, "test_metric": 0.30}, {"held_out": WINDOWS, "test_metric": 0.12},
         "accuracy 0.12 instead of 0.3."),
        (OF_ERRORS, {**OF_ERRORS, "val_metric": 0.2456, "mixed_examples": 5000},
         "mae 0.2456 instead of 4.929 (`naive` mixes 250 of 5,000 examples at a time)."),
        (OF_ERRORS, {**OF_ERRORS, "val_metric": 0.2456}, "mae 0.2456 instead of 4.929."),
        ({}, {"difference_mean": 0.513, "difference_max": 9.0},
         "examples whose pixels differ by 0.51 of 256 levels on average, same accuracy."),
        ({"drawn_by_class": True}, {"drawn_by_class": True},
         "the same data, drawn by class in `naive` and `optimized`, same accuracy."),
    ],
    ids=["accuracy", "tokens of few windows", "shuffle", "same shuffle", "pixels", "drawn"],
)  # fmt: skip
def test_examples_and_quality_are_the_same_only_where_they_are(naive, fast, end):
    result = race_result({"naive": NAIVE, "optimized": FAST})
    assert headline_of(result, naive=naive, optimized=fast).endswith(f", {end}")


@pytest.fixture
def table():
    fast = {"speedup_vs_naive": 2.0, "speedup_vs_naive_low": 1.9, "speedup_vs_naive_high": 2.1}
    fast |= {"wait_ms_mean": None, "train_examples_per_s": 12345.6, "test_metric": 0.8125}
    naive = row("naive", 50.0, 50, verdict="input-bound", test_metric=0.75)
    return comparison_table(comparison(naive, row("optimized", 100.0, 4, **fast)))


def test_values_are_written_as_people_read_them(table):
    naive, optimized = to_records(table)
    assert optimized["its epochs [examples/s]"] == "12,346"
    assert optimized["training [examples/s]"] == "100 (98 to 102)"
    assert optimized["× naive"] == "2.00 (1.90 to 2.10)" and naive["× naive"] == "1.00"
    assert optimized["stall [%]"] == "4 (2 to 6)"
    assert optimized["wait [ms]"] == ABSENT
    assert optimized["accuracy [test]"] == "0.8125 (validation 0.9000)"


def test_on_a_terminal_columns_are_aligned_and_what_is_tied_with_the_fastest_is_marked(table):
    *_, units, naive, optimized = to_text(table).splitlines()
    assert optimized.startswith("optimized *") and naive.startswith("naive  ")
    ends = [match.end() for match in re.finditer(r"examples/s", units)]
    assert [naive[:end].split()[-1] for end in ends] == ["50", "50", "400", "100"]
    assert [optimized[:end].split()[-1] for end in ends] == ["100", "12,346", "400", "100"]
    assert len(units) < 110


def test_columns_follow_what_there_is():
    columns = comparison_table(comparison(row("naive"))).columns
    assert not {"× naive", "GPU busy"} & {column.heading for column in columns}
    assert "validation" in [column.unit for column in columns]
    busy = row("naive", gpu_utilization_pct_mean=87.4)
    (record,) = to_records(comparison_table(comparison(busy, machine={"gpus": ["a GPU"]})))
    assert record["GPU busy [%]"] == "87"


def test_in_words_twenty_configurations_fit_into_a_note_of_mlflow():
    cause = "the input pipeline is slower than the model; decoding takes most of the time"
    found = {"cause": cause, "fix": "map: {parallel: 8}"}
    words = to_markdown(comparison(*[row(f"optimized_{number}", **found) for number in range(20)]))
    assert words.count(cause) == 20 and len(words) < 8000


def test_a_search_is_a_row_for_each_candidate_and_says_who_raced_or_could_not():
    seconds = {"seconds": 40.0, "seconds_low": 38.0, "seconds_high": 43.0}
    stream = replace(made_up(TunedCandidate), name="stream", dropped="", **seconds)
    unknown = dict.fromkeys(["examples_per_s", "seconds", "ram_mib"])
    unraced = replace(stream, name="other", dropped=tuning_table.NOT_RACED, **unknown)
    refused = replace(unraced, name="arrays", dropped="needs 9.0 GiB of memory | (allowed: 8)")
    candidates, said = [stream, unraced, refused], "tuned: nothing beats it"
    found = replace(made_up(TuningResult), candidates=candidates, sentence=said)
    first, second, _ = tuning_table.to_records(found)
    assert tuple(first) == tuning_table.COLUMNS
    assert (first["training [s]"], first["from, to [s]"]) == ("40.0", "38.0, 43.0")
    assert second["measured [examples/s]"] == second["RAM [MiB]"] == "–"
    console = Console(width=160)
    with console.capture() as shown:
        console.print(tuning_table.to_terminal(found))
    for part in ("stream", "needs 9.0 GiB of memory", "and 1 form that was not raced"):
        assert part in shown.get()
    sentence, _, *lines = tuning_table.to_markdown(found).splitlines()
    assert sentence == said and len(lines) == 2 + 2, "a form that was not needed is left out"
    bars = {line.replace("\\|", "").count("|") for line in lines}
    assert bars == {len(tuning_table.COLUMNS) + 1}
