"""Files that a table lists, files that change while they are read, and links to files."""

import os
import re
from pathlib import Path

import pytest

from tests.support.small_data import (
    data_settings,
    picture,
    read_reasons,
    save_photos,
    write_files,
)
from throughline.data import ingest as stage
from throughline.data.ingest import ingest
from throughline.data.local_files import list_files
from throughline.data.sources import class_folders, image_table, open_source
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource


def scan(tmp_path: Path, names: str, files: str, **changes):
    write_files(tmp_path, dict.fromkeys(files.split(), ""))
    rows = [f'"{name}",{"ab"[number % 2]}' for number, name in enumerate(names.split())]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]), encoding="utf-8")
    return image_table.scan(DataSettings(source="image_table", path=str(tmp_path), **changes))


@pytest.mark.parametrize(
    ("names", "files", "rule"),  # names in a list, files next to it, and how the names are read
    [
        ("a/1.png b/2.png", "a/1.png b/2.png", ""),
        ("0a1b2c 3d", "0a1b2c.jpg 3d.jpg", "suffix (added: .jpg)"),
        ("1 2", "1.jpg 2.PNG", "suffix (added: .PNG, .jpg)"),
        ("cat.1.jpg x.jpg", "a/cat.1.jpg a/x.jpg", "(added: a)"),
        ("1 2", "a/1.jpg a/2.jpg 1.txt", "(added: .jpg); they lack their folder (added: a)"),
        ("a/1.png b/1.png", "x/a/1.png x/b/1.png", "(added: x)"),
        (r"a\1.png b\1.png", "a/1.png b/1.png", "backslashes separate"),
        ("/k/x/in/1.png /k/x/in/2.png", "in/1.png in/2.png test/1.png", "k/x is from another pl"),
        (r"C:\x\a\1.png C:\x\a\2.png", "a/1.png a/2.png", "C:/x is from"),
        ("../a/1.png ../a/2.png", "a/1.png a/2.png", ".. is from another place and was left out"),
        ("1 2", "1.png 2.png old/1.png", "(added: .png)"),  # below the root first
        ("A/1.JPG a/2", "a/1.jpg a/2.png", "files differ in suffix or case"),
    ],
)
def test_names_are_read_by_one_rule_which_is_said(names, files, rule, tmp_path):
    found = scan(tmp_path, names, files)
    count = len(names.split())
    assert [file.id for file in found.files] == files.split()[:count]
    assert all(file.path == tmp_path / file.id for file in found.files)
    assert [*found.notes.values()] == [count] * bool(rule)
    assert rule in "".join(found.notes)


def test_paths_as_written_stay_and_as_many_files_may_be_missing_as_rejects_are_allowed(tmp_path):
    found = scan(tmp_path / "1", "1 2.png 3", "1.png 2.png 3.png more/list.csv")
    assert [file.id for file in found.files] == ["1.png", "2.png", "3.png"]
    assert found.warnings == ["other files of data are left out: more/list.csv"]
    assert [*found.notes.values()] == [2]
    found = scan(tmp_path / "2", "1 2 3", "x/1.png x/2.png", max_reject_fraction=0.4)
    assert [file.id for file in found.files] == ["x/1.png", "x/2.png", "3"]


@pytest.mark.parametrize(
    ("names", "files", "words"),
    [
        ("a b", "a.jpg a.png b.png", "a fits .*: a.jpg or a.png"),
        ("1.png", "x/1.png y/1.png y/2.png", "1.png fits .*: x/1.png or"),
        ("v/1.png t/2.png", "t/1.png t/2.png", r"1 of 2 files, such as t/2\.png, but not v/1\.png"),
        ("/a/1.png /b/2.png", "1.png 2.png", r"the first is /a/1\.png, "),
        ("A B", "x.png b.png", r"first is A, and .* holds b\.png"),
        ("1 2", "1.txt 2.txt", r"first is 1, and .* holds no images"),
        (
            "1 2",
            "x/1.tif x/2.tif",
            r"no images, but x/1\.tif; convert .* PNG: only \.bmp.* are read",
        ),
    ],
)
def test_other_names_are_refused_with_what_is_there(names, files, words, tmp_path):
    with pytest.raises(UnreadableSource, match=rf"list\.csv: column path: .*{words}"):
        scan(tmp_path, names, files)


def test_tables_in_the_folders_of_splits_are_named(tmp_path):
    names = ("train/_classes.csv", "valid/_classes.csv")
    write_files(tmp_path, dict.fromkeys(names, "filename,crack\n1.png,0\n"))
    settings = data_settings(tmp_path, "image_table", path_column="filename", label_column="crack")
    said = "its folders do: train/_classes.csv, valid/_classes.csv; join these as one table"
    with pytest.raises(DataNotFound, match=re.escape(said)):
        image_table.scan(settings)


@pytest.fixture
def root(tmp_path) -> Path:
    names = ("cat/1.jpg", "cat/2.jpg", "bird/owl/3.jpg")
    return write_files(tmp_path / "in", {name: name for name in names})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bird/owl/4.jpg", lambda file: file.touch()),
        ("cat/1.jpg", lambda file: file.write_text("1")),
        ("cat/2.jpg", lambda file: os.utime(file, ns=(0, 1))),
        ("cat/2.jpg", lambda file: file.unlink()),
    ],
    ids=["added", "of another size", "of another time", "removed"],
)
def test_a_file_that_changes_until_all_has_been_read_is_named(root, tmp_path, name, change):
    listed = list_files(root, out=tmp_path / "manifest")
    listed.check_unchanged()
    change(root / name)
    with pytest.raises(UnreadableSource, match=rf"/in/{name}\S* changed while ingest was reading"):
        listed.check_unchanged()
    (root / "more.jpg").touch()
    with pytest.raises(UnreadableSource, match="and 1 more changed"):
        listed.check_unchanged()


def test_what_no_source_reads_and_what_ingest_writes_may_change(root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (root / "elsewhere").symlink_to(tmp_path / "elsewhere")
    listed = list_files(root, out=root / "manifest")
    (root / "cat" / ".1.jpg.part").touch()
    (tmp_path / "elsewhere" / "4.jpg").touch()
    for name in ("manifest", "manifest.0.partial"):
        (root / name).mkdir()
        (root / name / "examples.parquet").touch()
    listed.check_unchanged()


def test_ingest_refuses_a_file_that_arrives_while_it_reads(tmp_path, monkeypatch):
    """DVC would record it as ingested, and never run ingest for it."""
    root = save_photos(tmp_path / "in", 20, "a", "b", suffix="png")
    settings = data_settings(root)

    def add_afterwards(*arguments, examine=stage.examine):
        found = examine(*arguments)
        (root / "a" / "late.png").write_bytes((root / "a" / "00.png").read_bytes())
        return found

    with monkeypatch.context() as patched:
        patched.setattr(stage, "examine", add_afterwards)
        with pytest.raises(UnreadableSource, match=r"/a/late\.png changed while ingest"):
            ingest(settings, tmp_path / "manifest", inspections=tmp_path / "kept")
    assert not (tmp_path / "manifest").exists()
    manifest = ingest(settings, tmp_path / "manifest", inspections=tmp_path / "kept")
    assert len(manifest.examples) + len(manifest.rejected) == 21


def relink(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.fixture
def linked(tmp_path) -> Path:
    """Two classes of twelve photos that are links to blobs, as in DVC's cache and in model hubs."""
    (tmp_path / "blobs").mkdir()
    for number in range(24):
        blob = f"blobs/{number:064x}"
        picture(number).save(tmp_path / blob, "PNG")
        relink(tmp_path / "in" / "ab"[number % 2] / f"{number:02d}.png", f"../../{blob}")
    relink(tmp_path / "more", BLOB)
    return tmp_path / "in"


BLOB = f"blobs/{0:064x}"


@pytest.mark.parametrize(
    ("name", "target", "reason"),  # of the link that is made; the reason is empty where it is read
    [
        ("a/00.png", f"{{linked}}/../{BLOB}", ""),
        ("a/00.png", "../../more", ""),
        ("a/00.png", "../b/01.png", "duplicate of"),
        ("a/00.png", "/dev/zero", "is a link to something"),
        ("a/00.png", "../x", "link to nothing: ../x is not"),
        ("a/00.png", "00.png", "cannot be read"),
        ("a/without a suffix", "nowhere", "link to nothing"),
        ("a/again", "..", "folder is a link to a folder that is listed itself: ."),
        (BLOB, "of another user", "is a link to a file of another user"),
    ],
)
def test_a_link_is_read_or_rejected_with_its_reason(name, target, reason, linked, tmp_path):
    if name != BLOB:
        relink(linked / name, target.format(linked=linked))
    elif os.geteuid() == 0:
        os.chown(tmp_path / BLOB, 12345, 12345)
    else:
        pytest.skip("needs the right to give files away")
    manifest = ingest(data_settings(linked), tmp_path / "manifest")
    reasons = [*read_reasons(manifest).values()]
    assert len(reasons) == bool(reason)
    assert all(one.startswith(reason) for one in reasons)


@pytest.mark.parametrize("folder", ["../blobs", "{linked}/../blobs", "a folder"])
def test_paths_of_a_list_lead_nowhere_that_no_link_to_a_file_leads_to(folder, linked, tmp_path):
    (linked / "a folder").symlink_to("../blobs")
    rows = [f"{'ab'[n % 2]}/{n:02d}.png,{'ab'[n % 2]}\n" for n in range(24)]
    rows += [f"{folder.format(linked=linked)}/{0:064x},a\n"]
    (linked / "list.csv").write_text("".join(["path,label\n", *rows]))
    manifest = ingest(data_settings(linked, "image_table"), tmp_path / "manifest")
    assert [*read_reasons(manifest).values()] == ["leads outside the data root"]
    assert len(manifest.examples) == 24


def test_other_contents_of_a_links_target_are_other_data(linked, tmp_path):
    before = ingest(data_settings(linked), tmp_path / "1", inspections=tmp_path / "kept")
    blob = tmp_path / BLOB
    status = blob.stat()
    picture(999).save(blob, "PNG")
    os.utime(blob, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = ingest(data_settings(linked), tmp_path / "2", inspections=tmp_path / "kept")
    changed = set(before.examples["digest"]) ^ set(after.examples["digest"])
    assert len(changed) == 2 and before.digest != after.digest


@pytest.mark.parametrize(
    ("leads", "words"),
    [
        ("../blobs", r"c is a link to the folder .*`rm .*cp -rs"),
        ("..", r"c is a link to the folder .*, which holds the link; remove the link"),
    ],
)
def test_a_link_to_a_folder_that_dvc_cannot_watch_is_refused(leads, words, linked, tmp_path):
    (linked / "c").symlink_to(leads)
    with pytest.raises(UnreadableSource, match=words):
        ingest(data_settings(linked), tmp_path / "manifest")
    listed = class_folders.scan(data_settings(linked, follow_links=False))
    assert [(one.id, one.reason) for one in listed.rejected] == [
        ("c", "folder is a link that leads outside the data root")
    ]
    left_out = ingest(data_settings(linked, leave_out=["c"]), tmp_path / "manifest")
    assert len(left_out.examples) == 24


@pytest.mark.parametrize(
    "source", ["arrays", "image_table", "table", "tfds", "text_lines", "tfrecord"]
)
def test_sources_that_read_files_as_a_whole_refuse_links_before_they_read(source, tmp_path):
    (tmp_path / "blob").touch()
    for target, follow_links, words in (
        ("../blob", False, "x leads outside the data root; .* set data.follow_links: true to read"),
        ("/dev/zero", True, "x is a link to something that is not a regular file"),
    ):
        relink(tmp_path / "in" / "x", target)
        settings = data_settings(tmp_path / "in", source, follow_links=follow_links)
        opened = open_source(settings, out=tmp_path / "out")
        with pytest.raises(UnreadableSource, match=words), opened:
            pass
