"""Rules that find faults of an input pipeline, one file per topic.

A rule is a detector, decorated with what it blames and the change that fixes it. A new rule needs
nothing else; a new file also needs its name in `TOPICS`.
"""

from __future__ import annotations

from throughline.diagnosis.rules import (
    padding,
    parallelism,
    repetition,
    service,
    sizes,
    training,
    volume,
    waits,
)
from throughline.diagnosis.rules.base import Change, Effort, Rule, list_rules

__all__ = ["RULES", "TOPICS", "Change", "Effort", "Rule"]

# The order in which findings are tried, the likeliest first.
TOPICS = (repetition, parallelism, volume, service, sizes, waits, padding, training)
RULES = tuple(rule for topic in TOPICS for rule in list_rules(topic))
