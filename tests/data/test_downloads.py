"""Archives and exports as people download them: what is said of each, and what is read."""

import re

import pytest

from tests.support.csv_tables import scan, write
from tests.support.small_data import picture
from throughline.data.glance import tabulate_columns, to_rows
from throughline.data.ingest import ingest
from throughline.data.sources import class_folders
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource

MINUTES = [[minute * 60_000_000_000, f"{minute * 60}.0", minute**2 % 7] for minute in range(40)]
REFUSED = {  # header, rows, settings, what is said
    "an amount with its currency": (
        "size,kind,price",
        [[row / 8, "ab"[row % 2], f"${row + 20}.50"] for row in range(40)],
        {"label_column": "price", "label_kind": "number"},
        r"label column price holds numbers such as '\$20\.50', in a notation that cannot be read",
    ),
    "quoted cells between blanks": (
        '"size" "kind" "label"',
        [['"1"', '"a"', '"x"']] * 30,
        {},
        r"line 1: blanks seem to separate quoted cells; set data\.delimiter: blanks$",
    ),
    "a second clock": (
        "time,elapsed,value",
        MINUTES,
        {"source": "time_series", "time_column": "time"},
        r"column elapsed is time in another unit; data\.numeric: \[elapsed, …\] keeps it",
    ),
}


@pytest.mark.parametrize(("header", "rows", "settings", "said"), REFUSED.values(), ids=REFUSED)
def test_a_table_is_refused_with_its_own_remedy(tmp_path, header, rows, settings, said):
    path = write(tmp_path, header, rows, delimiter=" " if '" ' in header else ",")
    with pytest.raises(UnreadableSource, match=said):
        scan(path, **{"label_column": "label", **settings})


def test_a_second_header_gives_no_categories_and_numbers_with_flags_are_no_header(tmp_path):
    good = [[row / 8, row % 7, "ab"[row % 2], "xy"[row % 2]] for row in range(40)]
    above = [["mm", "years", "code", "answer"], ['{"id": 1}', '{"id": 2}', '{"id": 3}', ""]]
    found = scan(write(tmp_path, "size,age,kind,label", [*above, *good]), label_column="label")
    assert found.schema.columns.categories == (("a", "b"),)
    assert [one.distinct for one in found.readings] == [40, 7, 2, 2]
    path = write(tmp_path, "size,age,kind,label", [["22.6 bd", "3 p", "a", "x"], *good])
    (rejected,) = scan(path, label_column="label").rejected
    assert rejected.reason == "size is not a number: '22.6 bd'; write 22.6, without the letters"


def test_lists_of_splits_beside_class_folders_are_named(tmp_path):
    for label in ("cake", "soup"):
        (tmp_path / "images" / label).mkdir(parents=True)
        picture(3).save(tmp_path / "images" / label / "1.png")
    (tmp_path / "meta").mkdir()
    for name in ("train.txt", "test.json", "classes.txt"):
        (tmp_path / "meta" / name).write_text("cake/1\n")
    settings = DataSettings(source="image_folder", path=str(tmp_path))
    (said,) = class_folders.scan(settings).warnings
    assert said.startswith("meta/test.json, meta/train.txt: named as splits, and not read")
    assert not class_folders.scan(settings.model_copy(update={"leave_out": ("meta",)})).warnings


def test_tables_in_the_folders_of_splits_are_named(tmp_path):
    for split in ("train", "valid"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "_classes.csv").write_text("filename,crack\n1.png,0\n")
    said = "its folders do: train/_classes.csv, valid/_classes.csv; join these as one table"
    with pytest.raises(DataNotFound, match=re.escape(said)):
        scan(tmp_path, "image_table", path_column="filename", label_column="crack")


def test_the_range_of_a_series_with_gaps_is_that_of_its_values(tmp_path):
    rows = [[hour, "" if hour == 7 else hour % 5, hour % 3] for hour in range(60)]
    path = write(tmp_path, "hour,load,wind", rows)
    settings = DataSettings(
        source="time_series", path=str(path), time_column="hour", missing={"load": "cut"}
    )
    shown = to_rows(tabulate_columns(ingest(settings, tmp_path / "manifest")))
    assert ["load", "number", "0", "2", "4", "5", "1", "0"] in shown


def test_an_image_that_is_left_out_lacks_no_row(tmp_path):
    for name in ("1", "2", "3", "meta/0", "more/0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        picture(ord(name[0])).save(tmp_path / f"{name}.png")
    rows = "1.png,a,train\n2.png,b,train\n3.png,a,validation\n"
    (tmp_path / "list.csv").write_text(f"path,label,split\n{rows}")
    (tmp_path / "meta.csv").write_text("path,label,split\nmeta/0.png,a,train\n")
    settings = {"source": "image_table", "path": str(tmp_path), "leave_out": ["meta"]}
    manifest = ingest(DataSettings(**settings), tmp_path / "manifest")
    assert "1 image is in no row of the table, such as " in str(manifest.stats["warnings"])
