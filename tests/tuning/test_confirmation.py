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
    to = {"to_baseline": one.ratio("new", "old"), "to_incumbent": one.ratio("new", "old")}
    return Choice(outcome="found", name="new", baseline="old", incumbent="old", pays_from=1, **to)


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
    one, journal = race_of(120.0), Journal(tmp_path)
    found = confirm(lead(one), one, journal, str, fit=fit_at(rates))
    assert found.outcome == ("refuted" if times else "confirmed")
    why = f"by fit in fresh processes it takes {times} times as long"
    assert found.reason == (why if times else "")
    assert confirm(lead(one), one, journal, str, fit=fit_at([])) == found, "from the journal"


def race_of(new):
    return race({"new": [new] * 5, "old": [100.0] * 5})


def test_a_large_lead_needs_no_confirmation(tmp_path):
    one = race_of(210.0)
    assert confirm(lead(one), one, Journal(tmp_path), str, fit=fit_at([])) == Confirmation()


def test_nothing_is_confirmed_or_refuted_while_others_are_at_work(tmp_path):
    one, journal = race_of(120.0), Journal(tmp_path)
    found = confirm(lead(one), one, journal, str, fit=fit_at([100.0] * 6, [0.0, 60.0] * 3))
    assert found.outcome == "disturbed"
    assert found.reason.startswith("make took 60 % of the cores while fit was to confirm")
    assert not journal.pages.fits


def test_one_that_cannot_be_trained_is_out_and_not_the_one_that_it_met(tmp_path):
    one, journal = race_of(120.0), Journal(tmp_path)
    fit = fit_at([120.0, ContestantLost("MissingInput: no data")])
    found = confirm(lead(one), one, journal, str, fit=fit)
    assert found.outcome == "lost"
    assert found.reason == "`old`: fit in a fresh process failed: MissingInput: no data"
    assert journal.pages.dropped.keys() == {"old"}


@pytest.fixture
def entry(tmp_path):
    params = check(SMALL)
    return Entry(params=params, root=tmp_path, name="naive", config=params.pipelines["naive"])


@pytest.mark.parametrize(
    ("failed", "refuted", "may_race_again"),
    [
        (None, False, False),
        ("UnequalConfigurations", True, False),
        ("MissingInput", False, False),
        ("OutOfMemory", False, True),
    ],
)
def test_only_one_with_other_examples_is_out_for_good(
    tmp_path, entry, monkeypatch, failed, refuted, may_race_again
):
    def do_once(*_, **__):
        if failed:
            raise ContestantLost(failed, Failure(kind=failed, message=""))
        return "digest"

    monkeypatch.setattr("throughline.tuning.confirmation.do_once", do_once)
    journal = Journal(tmp_path)
    assert prove(entry, journal) is not bool(failed)
    assert journal.pages.dropped.keys() == ({"naive"} if failed else set())
    assert bool(journal.pages.lost) is may_race_again
    assert bool(Journal(tmp_path).pages.dropped) is refuted


def test_what_is_proven_is_not_proven_again(tmp_path, entry):
    journal = Journal(tmp_path)
    journal.note_proof("naive", "digest")
    assert prove(entry, journal), "though there is no data"
