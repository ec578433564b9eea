"""The law of consistency: no configuration trains faster than its input alone or its model alone,
and none is ranked above what the epochs of its own training show.

Ceilings, epochs and the steady state are measured in different moments, between which another
program may come or go. Where they contradict each other, the lower rate counts, the difference is a
doubt in every comparison, and the verdict is undecided, with the contradiction as its cause.
"""

from __future__ import annotations

import math
from dataclasses import replace

from throughline.measurement.verdict import DRIFT_PCT
from throughline.reporting.ranking import bootstrap_interval, relative_rate
from throughline.results.comparison import MeasuredRow
from whowaits.timing.verdict import UNDECIDED

_LEAST_STEPS = 20  # of warm epochs; fewer are mostly their beginnings and ends
_FIX = "run train and profile of this configuration again while nothing else runs"


def keep_consistent(row: MeasuredRow, *, reference: float, model_ceiling: float) -> MeasuredRow:
    """A row whose rates do not pass its ceilings and, beyond noise and drift, its warm epochs; that
    of its model is `model_ceiling`, and `reference` the reference model's, in examples per second.
    """
    rate = relative_rate(row) * reference
    low = bootstrap_interval(row.relative_rates)[0] * reference
    ceilings = {
        "its input alone made": row.input_examples_per_s,
        "its model alone takes": model_ceiling,
    }
    epochs = row.warm_examples_per_s if row.warm_steps >= _LEAST_STEPS else None
    shown = ceilings if epochs is None else {**ceilings, "its epochs trained": epochs}
    passed = {what: limit for what, limit in shown.items() if low > limit * (1 + DRIFT_PCT / 100)}
    highest = min(rate, *ceilings.values(), *passed.values())
    kept = replace(row, relative_rates=tuple(each * highest / rate for each in row.relative_rates))
    if not passed:
        return kept
    what, limit = min(passed.items(), key=lambda item: item[1])
    cause = f"measured at {rate:,.0f} examples/s, while {what} {limit:,.0f} at another moment"
    doubt = row.rate_doubt + math.log(rate / highest)
    return replace(
        kept, rate_doubt=doubt, verdict=UNDECIDED, contradiction=cause, cause=cause, fix=_FIX
    )
