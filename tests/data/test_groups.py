"""Groups of files by their names."""

from __future__ import annotations

import pytest

from throughline.data.groups import find_crossing, find_name_groups, read_groups
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource


@pytest.mark.parametrize(
    ("names", "noticed"),
    [
        ([f"run/v_run_g{n % 9:02}_c{n // 9:02}.avi" for n in range(45)], True),
        ([f"smile/person{n % 9}-{n // 9}.png" for n in range(45)], True),
        ([f"scan/P{n % 9:03}_slice_{n // 9}.jpg" for n in range(45)], True),
        ([f"cat/cat.{n}.jpg" for n in range(45)], False),
        ([f"n{n % 2:08}/n{n % 2:08}_{n}.JPEG" for n in range(45)], False),  # of its class alone
        ([f"a/{n:06}.png" for n in range(45)], False),
        ([f"a/img_{n * 7919 % 1000}_{n}.png" for n in range(45)], False),
    ],
)
def test_names_of_several_files_of_one_person_or_video_are_noticed(names, noticed):
    found = find_name_groups(names, classes=2)
    assert len(found) == noticed and all("data.group: '" in each for each in found)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("(p[0-9)", "is no regular expression: unterminated character set"),
        ("p[0-9]", r"names no column; of a regular expression, it needs a \(…\)"),
        ("(p[0-9])", r"is found in 2 of 3 ids, and not in a/q1_1\.png"),
    ],
)
def test_a_group_that_finds_none_is_refused(group, words):
    settings = DataSettings(source="image_folder", path="photos", group=group)
    with pytest.raises(UnreadableSource, match=words):
        read_groups(["a/p1_1.png", "a/p1_2.png", "a/q1_1.png"], None, settings)


def test_groups_that_the_source_divides_are_named():
    assert find_crossing(["p1", "p1", "p2"], ["train", "test", "test"]) == [
        "1 groups are in several splits, as the source names these: p1"
    ]
    assert not find_crossing(["p1", "p1", "p2"], ["train", "train", "test"])
