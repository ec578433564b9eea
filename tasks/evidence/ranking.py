"""Which configuration is best, which are as good within the noise, and after how many epochs a snapshot or a cache has paid.

Rows are the report's: one mapping per configuration. Two configurations are compared by their utilisation, since the model alone was
timed by turns with training, in the same process: what slows the machine slows both. A configuration's interval is that of its
rounds; with nine rounds it covers the median with a probability of 96 %.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

BASELINE = "naive"
SURE_ERRORS = 3  # standard errors beyond which two results on the same held-out examples are no chance
Row = Mapping[str, Any]


def baseline(rows: Sequence[Row]) -> Row:
    """What the others are measured by: naive, or the first where there is none."""
    return next((row for row in rows if row["pipeline"] == BASELINE), rows[0])


def best(rows: Sequence[Row]) -> Row:
    """The configuration to use: of those that are tied for the highest training throughput, the one with the lowest stall."""
    names = tied(rows)
    return min((row for row in rows if row["pipeline"] in names), key=lambda row: row["stall_pct"])


def tied(rows: Sequence[Row]) -> list[str]:
    """The quickest configuration and all that it does not beat beyond the noise, in given order.

    Beyond the noise: its stall is lower by more than the rounds vary, or its throughput higher by more than the machine drifted.
    """
    top = max(rows, key=lambda row: row["train_examples_per_s"])
    least = top["train_examples_per_s"] * (1 - drift_pct(rows) / 100)
    return [row["pipeline"] for row in rows if row is top or (row["stall_pct_low"] <= top["stall_pct_high"] and row["train_examples_per_s"] >= least)]


def drift_pct(rows: Sequence[Row]) -> float:
    """How much the machine's own speed varied during the comparison: the spread of the model alone, which is the same work each time."""
    rates = [row["model_examples_per_s"] for row in rows]
    return 100 * (max(rates) - min(rates)) / statistics.median(rates)


def headline(rows: Sequence[Row]) -> str:
    """The result in one sentence."""
    top, base, names = best(rows), baseline(rows), tied(rows)
    if base["pipeline"] in names:
        return f"No configuration trains faster than {base['pipeline']} beyond the noise; training is {base['verdict']}."
    subject = f"{names[0]} trains" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} (tied) train up to"
    gain = max(row["train_examples_per_s"] for row in rows if row["pipeline"] in names) / base["train_examples_per_s"]
    rest = "nothing more to gain from input" if top["verdict"] == "compute-bound" else f"{top['stall_pct']:.0f} % of a step is still lost to input"
    return f"{subject} {gain:.1f}× as fast as {base['pipeline']}; training is {top['verdict']}, {rest}."


def break_even_epoch(row: Row, base: Row, *, setup_s: float) -> int | None:
    """The epoch from which on all that was spent is less than with the baseline; None: never, or there is nothing to pay back.

    `setup_s` is what was spent before the first epoch. A cache is paid in the first epoch, which is as slow as reading it cold.
    """
    epoch, other = (item["examples"] / item["train_examples_per_s"] for item in (row, base))
    fill = max(0.0, row["examples"] / row["cold_examples_per_s"] - row["examples"] / row["input_examples_per_s"])
    spent = setup_s if row["gathers"] else fill if row["caches"] else 0.0
    return math.ceil(spent / (other - epoch)) if spent > 0 and other > epoch else None


def unlike_results(rows: Sequence[Row]) -> str | None:
    """Say so where a configuration's validation accuracy is further from the others' median than chance explains.

    Chance is the error of a share counted on the held-out examples, for two models: those of one data set also differ by order and augmentation.
    """
    scores = {row["pipeline"]: row["val_metric"] for row in rows if row["metric"] == "accuracy"}
    if len(scores) < 2:  # noqa: PLR2004 - one result is like itself
        return None
    middle, held_out = statistics.median(scores.values()), rows[0]["held_out"]
    allowed = SURE_ERRORS * math.sqrt(2 * max(1e-6, middle * (1 - middle)) / held_out)
    far = [f"{name} {score:.4f}" for name, score in scores.items() if abs(score - middle) > allowed]
    return (
        f"validation accuracy differs by more than chance (± {allowed:.4f} around {middle:.4f}, {held_out:,} held-out examples): {', '.join(far)}"
        if far
        else None
    )
