"""Only what tests/support/skips.py lists may be skipped, never in CI, and the end says what was."""

from __future__ import annotations

import pytest

from tests.support import skips

UNMET = skips.Need(untested="pictures", remedy="look at them", met=lambda: False)
LISTED = "from tests.support import skips\ndef test_it():\n    skips.need('eyes')"
UNLISTED = {
    "test_called": "import pytest\ndef test_it():\n    pytest.skip('no time')",
    "test_marked": "import pytest\n@pytest.mark.skip('no time')\ndef test_it(): ...",
    "test_module": "import pytest\npytest.skip('no time', allow_module_level=True)",
}


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs files of tests, given as source, under these hooks; returns the counts of their outcomes
    and what was printed.
    """
    monkeypatch.setitem(skips.NEEDS, "eyes", UNMET)
    monkeypatch.delenv("CI", raising=False)

    def run(**files):
        pytester.makepyfile(**files)
        result = pytester.runpytest_inprocess(
            "--continue-on-collection-errors", plugins=[skips]
        )
        return result.parseoutcomes(), result.stdout.str()

    return run


def test_a_listed_skip_is_said_at_the_end_with_its_remedy_and_any_other_fails(run):
    counts, text = run(test_listed=LISTED, **UNLISTED)
    assert counts == {"skipped": 1, "failed": 1, "errors": 2}
    assert "NOT TESTED ON THIS MACHINE" in text
    assert "1 tests need eyes: pictures. To have it tested: look at them" in text
    assert text.count(
        "skipped for a reason that tests/support/skips.py does not list: Skipped: no time"
    ) >= len(UNLISTED)


def test_in_continuous_integration_a_listed_skip_fails(run, monkeypatch):
    monkeypatch.setenv("CI", "true")
    counts, text = run(test_listed=LISTED)
    assert counts == {"failed": 1}
    assert "nothing is skipped where CI=true; this needs eyes: look at them" in text
