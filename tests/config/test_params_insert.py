"""A configuration is added to params.yaml as lines; every other byte stays."""

from __future__ import annotations

import pytest

from tests.support.project import ROOT
from throughline.config.params_file import parse_yaml
from throughline.config.params_insert import insert_pipeline, write_yaml
from throughline.shared.errors import Untunable

FOUND = {"read": "snapshot", "shuffle": {"kind": "global"}, "map": {"parallel": 2}, "prefetch": 2}
TEXTS = {
    "the project's own": (ROOT / "params.yaml").read_text(),
    "at the end, without a last line break": "a: 1\npipelines:\n  naive: {read: shards}",
    "a comment after it": "pipelines:\n    naive:\n        read: shards\n    # more\n\nb: [1]\n",
    "lines of Windows": "pipelines:\r\n  naive: {read: shards}\r\nb: 1\r\n",
    "a flow mapping over lines": "pipelines:\n  naive: {read: shards,\n    prefetch: 2}\nb: 1\n",
    "an empty value at the end": "pipelines:\n  naive:\n    read: shards\n    cache:\n",
    "an empty value before a section": "pipelines:\n  a: {}\n  b:\n    cache:\nc: 1\n",
    "an anchor": "x: &x {read: shards}\npipelines:\n  naive: *x\n  other:\n    <<: *x\nb: 1\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_only_the_new_lines_are_added_and_only_once(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_bytes(text.encode())
    assert insert_pipeline(path, "tuned", FOUND)
    before, after = text.encode(), path.read_bytes()
    unlike = (at for at, (one, new) in enumerate(zip(before, after, strict=False)) if one != new)
    start = next(unlike, len(before))
    assert after.endswith(before[start:]), "all of the rest"
    document = parse_yaml(text, "params.yaml")
    document["pipelines"]["tuned"] = FOUND
    assert parse_yaml(after.decode(), "params.yaml") == document
    assert not insert_pipeline(path, "tuned", FOUND) and path.read_bytes() == after


@pytest.mark.parametrize("mode", [0o600, 0o444])
def test_a_link_stays_a_link_and_who_may_read_and_write_its_file_stays(tmp_path, mode):
    path = tmp_path / "params.yaml"
    path.symlink_to("shared.yaml")
    path.write_text(TEXTS["a comment after it"])
    path.chmod(mode)
    assert insert_pipeline(path, "tuned", FOUND)
    assert path.is_symlink() and "tuned" in (tmp_path / "shared.yaml").read_text()
    assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pipelines: {naive: {read: shards}}\n", "no lines can be added"),
        ("x: &x {read: shards}\npipelines:\n  naive:\n    *x\n", "no lines can be added"),
        ("pipelines:\n  tuned: {read: shards}\n", "says something else"),
    ],
)
def test_what_cannot_be_added_is_said_with_the_lines_to_add_by_hand(tmp_path, text, why):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(Untunable, match=why) as refused:
        insert_pipeline(path, "tuned", FOUND)
    assert write_yaml("tuned", FOUND) in str(refused.value)
    assert path.read_text() == text


def test_a_class_whose_name_is_a_number_stays_a_name(tmp_path):
    path, found = tmp_path / "params.yaml", {"read": "snapshot", "sampling": {"1": 2, "on": 3}}
    path.write_text("pipelines:\n  naive: {read: shards}\n")
    assert insert_pipeline(path, "tuned", found)
    assert '{"1": 2, on: 3}' in write_yaml("tuned", found)
    assert parse_yaml(path.read_text(), path.name)["pipelines"]["tuned"] == found
