"""A small lead is confirmed by `fit` in fresh processes; what is known is not done again."""

from __future__ import annotations

import pytest

from tests.support.project import SMALL
from tests.support.races import Others, race
from throughline.config.params import check
from throughline.shared.failures import Failure
from throughline.tuning.choice import Choice
from throughline.tuning.confirmation import Confirmation, confirm, prove
from throughline.tuning.contestant import ContestantLost
from throughline.tuning.jobs import Entry
from throughline.tuning.journal import Journal


def lead(one):
    ratio = one.ratio("new", "old")
    return Choice(
        outcome="found",
        name="new",
        baseline="old",
        incumbent="old",
        to_baseline=ratio,
        to_incumbent=ratio,
        pays_from=1,
    )


def fit_at(rates, others=()):
    """`fit` in fresh processes that gives rates in this order, while others take this share of the
    cores.
    """
    given, taken = iter(rates), iter(others)

    def fit(entry, rate, journal):
        if isinstance(found := next(given), Exception):
            raise found
        return found, Others(next(taken, 0.0))

    return fit


@pytest.mark.parametrize(
    ("rates", "times"),
    [
        ((120.0, 100.0, 100.0, 110.0), None),
        ((120.0, 100.0, 100.0, 90.0), "0.97"),
        ((80.0, 100.0, 100.0, 90.0), "1.18"),
        ((101.0, 100.0, 100.0, 102.0), "0.99"),
    ],
)
def test_a_small_lead_has_to_win_each_pair_of_runs(tmp_path, rates, times):
    """In the first pair the new one runs first, in the second one last."""
    one, journal = race({"new": [120.0] * 5, "old": [100.0] * 5}), Journal(tmp_path)
    found = confirm(lead(one), one, journal, str, fit=fit_at(rates))
    assert found.outcome == ("refuted" if times else "confirmed")
    why = f"by fit in fresh processes it takes {times} times as long"
    assert found.reason == (why if times else "")
    assert confirm(lead(one), one, journal, str, fit=fit_at([])) == found, "from the journal"


def test_a_large_lead_needs_no_confirmation(tmp_path):
    one = race({"new": [210.0] * 5, "old": [100.0] * 5})
    assert confirm(lead(one), one, Journal(tmp_path), str, fit=fit_at([])) == Confirmation()


def test_nothing_is_confirmed_or_refuted_while_others_are_at_work(tmp_path):
    one, journal = race({"new": [120.0] * 5, "old": [100.0] * 5}), Journal(tmp_path)
    found = confirm(lead(one), one, journal, str, fit=fit_at([100.0] * 6, [0.0, 60.0] * 3))
    assert found.outcome == "disturbed"
    assert found.reason.startswith("make took 60 % of the cores while fit was to confirm")
    assert not journal.pages.fits


def test_one_that_cannot_be_trained_is_out_and_not_the_one_that_it_met(tmp_path):
    one, journal = race({"new": [120.0] * 5, "old": [100.0] * 5}), Journal(tmp_path)
    fit = fit_at([120.0, ContestantLost("MissingInput: no data")])
    found = confirm(lead(one), one, journal, str, fit=fit)
    assert (found.outcome, found.reason) == (
        "lost",
        "`old`: fit in a fresh process failed: MissingInput: no data",
    )
    assert journal.pages.dropped.keys() == {"old"}


def lost(kind):
    return ContestantLost(kind, Failure(kind=kind, message=""))


@pytest.mark.parametrize(
    ("found", "refuted", "may_race_again"),
    [
        ("digest", False, False),
        (lost("UnequalConfigurations"), True, False),
        (lost("MissingInput"), False, False),
        (lost("OutOfMemory"), False, True),
    ],
    ids=["equal", "other examples", "no data", "no memory"],
)
def test_only_one_with_other_examples_is_out_for_good(
    tmp_path, monkeypatch, found, refuted, may_race_again
):
    def do_once(*_, **__):
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("throughline.tuning.confirmation.do_once", do_once)
    params, journal = check(SMALL), Journal(tmp_path)
    entry = Entry(params=params, root=tmp_path, name="naive", config=params.pipelines["naive"])
    assert prove(entry, journal) is (found == "digest")
    assert journal.pages.dropped.keys() == ({"naive"} if found != "digest" else set())
    assert bool(journal.pages.lost) is may_race_again
    assert bool(Journal(tmp_path).pages.dropped) is refuted


def test_what_is_proven_is_not_proven_again(tmp_path):
    params, journal = check(SMALL), Journal(tmp_path)
    entry = Entry(params=params, root=tmp_path, name="naive", config=params.pipelines["naive"])
    journal.note_proof("naive", "digest")
    assert prove(entry, journal), "though there is no data"
