"""What DVC would fail at or wait for is named before it is asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows.run import source_check
from flows.run.source_check import check_named_files, check_source, is_large
from tasks.own_code import list_watched_files
from throughline.config.named_files import find_named_files
from throughline.shared.errors import (
    DataNotFound,
    InvalidParams,
    ObjectStoreFailed,
    UnreadableSource,
)
from throughline.shared.object_store import open_store


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "größe.jpg").write_bytes(b"x")
    init_dvc(tmp_path)
    return tmp_path / "photos" / "cat"


def init_dvc(folder):
    """What `dvc init --no-scm` makes there."""
    (folder / ".dvc").mkdir()
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = True\n    analytics = false\n")


@pytest.mark.integration
def test_what_dvc_cannot_hash_is_refused_with_its_name_unless_it_is_ignored(photos, tmp_path):
    check_source(tmp_path, "photos")
    os.mkfifo(photos / "pipe.jpg")
    (photos / "link.png").symlink_to("nowhere")
    (photos / "zero.png").symlink_to("/dev/zero")
    with pytest.raises(UnreadableSource) as refused:
        check_source(tmp_path, "photos")
    for reason in (
        "pipe.jpg is no regular file",
        "link.png cannot be opened",
        "zero.png is no regular file",
    ):
        assert reason in str(refused.value)
    not_utf8 = Path(os.fsdecode(os.fsencode(photos) + b"/x\xff.png"))
    not_utf8.touch()
    (tmp_path / ".dvcignore").write_text(
        "photos/cat/pipe.jpg\nphotos/cat/link.png\nphotos/cat/zero.png\n"
    )
    with pytest.raises(UnreadableSource, match=r"cannot read some: \S+xff.png has a name that is"):
        check_source(tmp_path, "photos")
    not_utf8.unlink()
    check_source(tmp_path, "photos")


@pytest.mark.integration
def test_of_data_outside_the_project_no_dvcignore_is_advised(photos, tmp_path):
    (photos / "link.png").symlink_to("nowhere")
    (tmp_path / "project").mkdir()
    init_dvc(tmp_path / "project")
    for path in (str(tmp_path / "photos"), "../photos"):
        with pytest.raises(UnreadableSource, match=r"`find \S+ -xtype l -delete`") as refused:
            check_source(tmp_path / "project", path)
        assert ".dvcignore" not in str(refused.value)


def test_a_source_that_is_not_there_is_named_unless_it_will_be_fetched(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n")
    check_source(tmp_path, "table.csv")
    check_source(tmp_path, "data/raw/fashion_mnist", fetched="fashion_mnist")
    for fetched in ("none", "fashion_mnist"):
        with pytest.raises(DataNotFound, match=r"^data\.path: nothing does not exist"):
            check_source(tmp_path, "nothing", fetched=fetched)


def test_a_bucket_in_which_nothing_is_there_is_named(tmp_path, bucket_url, proxy):
    open_store(bucket_url).write("photos/cat/1.jpg", b"x")
    proxy.requests.clear()
    for path in ("", "/photos", "/photos/", "/photos/cat/1.jpg"):
        check_source(tmp_path, f"{bucket_url}{path}")
    assert not [path for method, path, _ in proxy.requests if method == "GET" and "?" not in path]
    with pytest.raises(DataNotFound, match=rf"^data\.path: {bucket_url}/phot does not exist"):
        check_source(tmp_path, f"{bucket_url}/phot")
    with pytest.raises(ObjectStoreFailed, match=r"s3://other: there is no such bucket"):
        check_source(tmp_path, "s3://other")


def test_a_tokenizer_that_git_does_not_know_is_refused_before_anything_runs(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "worktree").mkdir()
    file = tmp_path / "project" / "vocab.txt"
    file.write_text("[UNK]\n")
    monkeypatch.chdir(tmp_path / "project")
    relative = {"preprocess": [{"tokenize": {"kind": "wordpiece", "model": file.name}}]}
    check_named_files(tmp_path / "project", relative)
    with pytest.raises(InvalidParams, match=r"git add --force vocab\.txt.*absolute path"):
        check_named_files(tmp_path / "worktree", relative)
    for given in ({"kind": "wordpiece", "model": str(file)}, {"kind": "bytes"}):
        check_named_files(tmp_path / "worktree", {"preprocess": [{"tokenize": given}]})
    weights = {"model": {"name": "mlp", "weights": "some.h5"}}
    assert find_named_files({**relative, **weights}) == [
        ("preprocess: tokenize.model", "vocab.txt"),
        ("model.weights", "some.h5"),
    ]


def test_a_file_that_dvc_yaml_lists_and_git_does_not_know_is_refused_as_such(tmp_path):
    (tmp_path / "dvc.yaml").write_text(
        "      # Own ops and models\n      - my_ops.py\n      - lookup.csv\n    outs: []\n"
    )
    assert list_watched_files(tmp_path) == ["lookup.csv"]
    with pytest.raises(InvalidParams, match=r"^1 problem.*\n.*dvc\.yaml: lookup\.csv is not in"):
        check_named_files(tmp_path, {}, ["lookup.csv"])
    (tmp_path / "lookup.csv").touch()
    check_named_files(tmp_path, {}, ["lookup.csv"])


def test_data_is_large_from_so_many_files_or_bytes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(source_check, "MANY_FILES", 3)
    assert not is_large(tmp_path / "nowhere")
    for name in ("a/1", "a/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert not is_large(tmp_path)
    (tmp_path / "b").symlink_to("gone")
    assert is_large(tmp_path) and not is_large(tmp_path / "a" / "1")
    with (tmp_path / "a" / "1").open("wb") as file:
        file.truncate(source_check.MANY_BYTES)  # takes no room
    assert is_large(tmp_path / "a" / "1") and is_large(tmp_path / "a")
