"""Links below `data.path` to regular files are read as what their names say; others are refused."""

import os
from pathlib import Path

import pytest

from tests.support.small_data import data_settings, picture, read_reasons
from throughline.data.ingest import ingest
from throughline.data.sources import class_folders, image_table, open_source, text_folder
from throughline.shared.errors import UnreadableSource

pytestmark = pytest.mark.integration


@pytest.fixture
def root(tmp_path):
    """Two classes of twelve photos that are links to blobs, as in DVC's cache and in model hubs."""
    for number in range(24):
        link = tmp_path / "in" / "ab"[number % 2] / f"{number:02d}.png"
        blob = tmp_path / "blobs" / f"{number:064x}"
        for path in (link, blob):
            path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(blob, "PNG")
        link.symlink_to(Path("../../blobs") / blob.name)
    return tmp_path / "in"


def relink(path, target):
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    return path


BLOB = f"blobs/{0:064x}"
# What happens to one link, and why it is rejected; empty where it is read.
LINKED = {
    "as they are": (lambda root: None, ""),
    "absolute": (lambda root: relink(root / "a/00.png", root.parent / BLOB), ""),
    "through a second link": (
        lambda root: relink(root / "a/00.png", relink(root.parent / "more", BLOB)),
        "",
    ),
    "within the root": (lambda root: relink(root / "a/00.png", "../b/01.png"), "duplicate of"),
    "to a device": (lambda root: relink(root / "a/00.png", "/dev/zero"), "is a link to something"),
    "to a folder": (lambda root: relink(root / "a/00.png", "../../blobs"), None),
    "to nothing": (lambda root: relink(root / "a/00.png", "../x"), "link to nothing: ../x is not"),
    "without a suffix": (lambda root: relink(root / "a/c", "nowhere"), "link to nothing"),
    "to itself": (lambda root: relink(root / "a/00.png", "00.png"), "cannot be read"),
    "of another user": (
        lambda root: os.chown(root.parent / BLOB, 12345, 12345),
        "is a link to a file of another user",
    ),
    "to what holds it": (
        lambda root: relink(root / "a/again", ".."),
        "folder is a link to a folder that is listed itself: .",
    ),
    "to no picture": (lambda root: relink(root / "a/00.png", "/etc/hostname"), "not an image"),
}


@pytest.mark.parametrize("case", LINKED)
def test_a_link_is_read_or_rejected_with_its_reason(case, root, tmp_path):
    happens, reason = LINKED[case]
    if case == "of another user" and os.geteuid() != 0:
        pytest.skip("needs the right to give files away")
    happens(root)
    if reason is None:
        with pytest.raises(UnreadableSource, match=r"a/00\.png is a link to the folder .*cp -rs"):
            ingest(data_settings(root), tmp_path / "manifest")
        return
    manifest = ingest(data_settings(root), tmp_path / "manifest")
    reasons = [*read_reasons(manifest).values()]
    assert len(reasons) == bool(reason)
    assert all(one.startswith(reason) for one in reasons)


@pytest.mark.parametrize("folder", ["../blobs", "{root}/../blobs", "a folder"])
def test_paths_of_a_list_lead_nowhere_that_no_link_to_a_file_leads_to(folder, root, tmp_path):
    (root / "a folder").symlink_to("../blobs")
    (root / "list.csv").write_text(
        "path,label\n"
        + "".join(f"{'ab'[n % 2]}/{n:02d}.png,{'ab'[n % 2]}\n" for n in range(24))
        + f"{folder.format(root=root)}/{0:064x},a\n"
    )
    manifest = ingest(data_settings(root, "image_table"), tmp_path / "manifest")
    assert [*read_reasons(manifest).values()] == ["leads outside the data root"]
    assert len(manifest.examples) == 24


def test_other_contents_of_a_links_target_are_other_data(root, tmp_path):
    folders = [tmp_path / "1", tmp_path / "2"]
    before = ingest(data_settings(root), folders[0], inspections=tmp_path / "kept")
    blob = tmp_path / BLOB
    status = blob.stat()
    picture(999).save(blob, "PNG")
    os.utime(blob, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = ingest(data_settings(root), folders[1], inspections=tmp_path / "kept")
    changed = set(before.examples["digest"]) ^ set(after.examples["digest"])
    assert len(changed) == 2 and before.digest != after.digest


@pytest.mark.parametrize(
    ("leads", "words"),
    [
        ("../blobs", r"c is a link to the folder .*`rm .*cp -rs"),
        ("..", r"c is a link to the folder .*, which holds the link; remove the link"),
        ("/", r"c is a link to the folder /, which holds the link"),
    ],
)
def test_a_link_to_a_folder_that_dvc_cannot_watch_is_refused(leads, words, root, tmp_path):
    (root / "c").symlink_to(leads)
    with pytest.raises(UnreadableSource, match=words):
        ingest(data_settings(root), tmp_path / "manifest")
    listed = class_folders.scan(data_settings(root, follow_links=False))
    assert [(one.id, one.reason) for one in listed.rejected] == [
        ("c", "folder is a link that leads outside the data root")
    ]
    left_out = ingest(data_settings(root, leave_out=["c"]), tmp_path / "manifest")
    assert len(left_out.examples) == 24


def test_linked_texts_and_tables_are_read_too(tmp_path):
    (tmp_path / "texts" / "a").mkdir(parents=True)
    (tmp_path / "texts" / "a" / "x.txt").symlink_to("/etc/hostname")
    found = [*text_folder.scan(data_settings(tmp_path / "texts", "text_folder")).documents]
    assert [one.id for one in found] == ["a/x.txt"]
    (tmp_path / "hub").mkdir()
    (tmp_path / "blob").write_bytes(b"PAR1")
    (tmp_path / "hub" / "test.parquet").symlink_to(tmp_path / "blob")
    with pytest.raises(UnreadableSource, match=r"test\.parquet is not a readable Parquet"):
        image_table.scan(data_settings(tmp_path / "hub", "image_table"))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("arrays", "x.npy"),
        ("image_table", "list.csv"),
        ("table", "a.parquet"),
        ("tfds", "dataset_info.json"),
        ("text_lines", "a.jsonl"),
        ("tfrecord", "a.tfrecord"),
    ],
)
def test_sources_that_read_files_as_a_whole_refuse_links_before_they_read(source, name, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "blob").touch()
    for target, follow_links, words in (
        ("../blob", False, "leads outside the data root; .* set data.follow_links: true to read"),
        ("/dev/zero", True, "is a link to something that is not a regular file"),
    ):
        relink(tmp_path / "in" / name, target)
        settings = data_settings(tmp_path / "in", source, follow_links=follow_links)
        with (
            pytest.raises(UnreadableSource, match=f"{name} {words}"),
            open_source(settings, out=tmp_path / "out"),
        ):
            pass
