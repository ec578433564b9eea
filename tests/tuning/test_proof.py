"""Whether a winner's examples are proven; what is known is not done again."""

from __future__ import annotations

import pytest

from tests.support.project import SMALL
from throughline.config.params import check
from throughline.race.contestant import ContestantLost
from throughline.race.jobs import Entry
from throughline.shared.failures import Failure
from throughline.tuning.journal import Journal
from throughline.tuning.proof import prove


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

    monkeypatch.setattr("throughline.tuning.proof.do_once", do_once)
    journal = Journal(tmp_path)
    assert prove(entry, journal) is not bool(failed)
    assert journal.pages.dropped.keys() == ({"naive"} if failed else set())
    assert bool(journal.pages.lost) is may_race_again
    assert bool(Journal(tmp_path).pages.dropped) is refuted


def test_what_is_proven_is_not_proven_again(tmp_path, entry):
    journal = Journal(tmp_path)
    journal.note_proof("naive", "digest")
    assert prove(entry, journal), "though there is no data"
