"""Links below `data.path` to regular files are read as what their names say; others are refused."""

import os

import pytest

from tests.support.small_data import data_settings, picture, read_reasons
from throughline.data.ingest import ingest
from throughline.data.sources import class_folders, image_table, open_source, text_folder
from throughline.shared.errors import UnreadableSource

pytestmark = pytest.mark.integration


def relink(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.fixture
def root(tmp_path):
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
        ("a/00.png", f"{{root}}/../{BLOB}", ""),
        ("a/00.png", "../../more", ""),
        ("a/00.png", "../b/01.png", "duplicate of"),
        ("a/00.png", "/dev/zero", "is a link to something"),
        ("a/00.png", "../x", "link to nothing: ../x is not"),
        ("a/00.png", "00.png", "cannot be read"),
        ("a/00.png", "/etc/hostname", "not an image"),
        ("a/without a suffix", "nowhere", "link to nothing"),
        ("a/again", "..", "folder is a link to a folder that is listed itself: ."),
        (BLOB, "of another user", "is a link to a file of another user"),
    ],
)
def test_a_link_is_read_or_rejected_with_its_reason(name, target, reason, root, tmp_path):
    if name != BLOB:
        relink(root / name, target.format(root=root))
    elif os.geteuid() == 0:
        os.chown(tmp_path / BLOB, 12345, 12345)
    else:
        pytest.skip("needs the right to give files away")
    manifest = ingest(data_settings(root), tmp_path / "manifest")
    reasons = [*read_reasons(manifest).values()]
    assert len(reasons) == bool(reason)
    assert all(one.startswith(reason) for one in reasons)


@pytest.mark.parametrize("folder", ["../blobs", "{root}/../blobs", "a folder"])
def test_paths_of_a_list_lead_nowhere_that_no_link_to_a_file_leads_to(folder, root, tmp_path):
    (root / "a folder").symlink_to("../blobs")
    rows = [f"{'ab'[n % 2]}/{n:02d}.png,{'ab'[n % 2]}\n" for n in range(24)]
    rows += [f"{folder.format(root=root)}/{0:064x},a\n"]
    (root / "list.csv").write_text("".join(["path,label\n", *rows]))
    manifest = ingest(data_settings(root, "image_table"), tmp_path / "manifest")
    assert [*read_reasons(manifest).values()] == ["leads outside the data root"]
    assert len(manifest.examples) == 24


def test_other_contents_of_a_links_target_are_other_data(root, tmp_path):
    before = ingest(data_settings(root), tmp_path / "1", inspections=tmp_path / "kept")
    blob = tmp_path / BLOB
    status = blob.stat()
    picture(999).save(blob, "PNG")
    os.utime(blob, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = ingest(data_settings(root), tmp_path / "2", inspections=tmp_path / "kept")
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
    relink(tmp_path / "texts" / "a" / "x.txt", "/etc/hostname")
    found = [*text_folder.scan(data_settings(tmp_path / "texts", "text_folder")).documents]
    assert [one.id for one in found] == ["a/x.txt"]
    (tmp_path / "blob").write_bytes(b"PAR1")
    relink(tmp_path / "hub" / "test.parquet", tmp_path / "blob")
    with pytest.raises(UnreadableSource, match=r"test\.parquet is not a readable Parquet"):
        image_table.scan(data_settings(tmp_path / "hub", "image_table"))


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
