"""A picture of an experiment that somebody else made brings no script into the page."""

import re
from base64 import b64decode

from tasks import report
from tests.support.project import ROOT


def test_a_picture_is_an_image_in_which_nothing_runs(tmp_path):
    picture = b"""<svg onload='alert(1)'></svg></div>"><script>x</script>"""
    (tmp_path / "steps.svg").write_bytes(picture)
    address = report._picture(tmp_path / "steps.svg")
    head, _, data = address.partition(",")
    assert head == "data:image/svg+xml;base64" and b64decode(data) == picture
    assert not set(address) & set("<>\"'")


def test_the_page_escapes_everything_and_runs_nothing():
    page = (ROOT / "throughline" / "reporting" / "report.html").read_text()
    assert not re.search(r"\|\s*safe|<script", page) and "default-src 'none'" in page
