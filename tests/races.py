"""Races of given rates, for the tests of a search."""

from __future__ import annotations

from throughline.tuning.race import Race, Round


def rounds(rates, others=0.0, busiest="make"):
    """Rounds of equally long lists of rates; None: not in that round."""
    length = max(map(len, rates.values()))
    return [
        Round(
            heat="final",
            rates={
                name: values[number]
                for name, values in rates.items()
                if number < len(values) and values[number] is not None
            },
            others_pct=others,
            busiest=busiest,
        )
        for number in range(length)
    ]


def race(rates, *, costs=None, epochs=10, **options):
    return Race(rounds=rounds(rates, **options), costs=costs or {}, examples=1000, epochs=epochs)
