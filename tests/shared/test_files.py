"""Files are complete or absent, also where several threads write the same one."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from tests.support.small_data import read_files, write_files
from throughline.shared import files
from throughline.shared.files import (
    atomic_file,
    atomic_files,
    atomic_folder,
    dump_json,
    resumable_folder,
    write_json,
)


def test_a_file_or_folder_is_on_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    flushed, late = {}, []  # sizes by inodes

    def fsync(descriptor, *, real=os.fsync):
        real(descriptor)
        status = os.fstat(descriptor)
        flushed[status.st_ino] = status.st_size

    def check(move):
        def checked(old, new):
            for one in (Path(old), *Path(old).rglob("*")):
                status = one.stat()
                if not one.is_dir() and flushed.get(status.st_ino) != status.st_size:
                    late.append(one)
            return move(old, new)

        return checked

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", check(os.replace))
    monkeypatch.setattr(files, "_exchange", check(files._exchange))
    for version in ("first", "second"):
        with atomic_file(tmp_path / "file") as temporary:
            temporary.write_text(version)
        with resumable_folder(tmp_path / "folder", key=version) as folder:
            write_files(folder, {"below/file": version})
    assert read_files(tmp_path) == {"file": b"second", "folder/below/file": b"second"}
    assert late == []


def test_work_that_was_interrupted_goes_on_and_other_work_begins_from_scratch(tmp_path):
    folder = earlier = tmp_path
    for key, kept in (("one", []), ("one", ["member"]), ("other", [])):
        work, earlier = resumable_folder(tmp_path / "folder", key=key), folder
        with pytest.raises(InterruptedError), work as folder:
            assert [path.name for path in folder.iterdir()] == kept
            (folder / "member").write_text("finished")
            raise InterruptedError
    late = atomic_file(earlier / "late")  # of a worker elsewhere, whose stage was killed
    with pytest.raises(FileNotFoundError), late:
        pytest.fail("its folder is made again")


def test_what_a_process_that_was_killed_elsewhere_has_begun_is_not_in_the_finished_folder(tmp_path):
    with resumable_folder(tmp_path / "x", key="one") as folder:
        for inner in (folder, folder / "below"):
            half = f".shard.{os.getpid()}-{'0' * 16}.tmp"
            write_files(inner, {half: "half", ".mine.tmp": "whole"})
    assert {*read_files(tmp_path)} == {"x/.mine.tmp", "x/below/.mine.tmp"}


def test_a_folder_that_is_not_resumed_has_nothing_of_an_interrupted_attempt(tmp_path):
    with pytest.raises(InterruptedError), atomic_folder(tmp_path / "folder") as folder:
        (folder / "old picture").touch()
        raise InterruptedError
    assert not [*tmp_path.iterdir()]
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "new picture").touch()
    assert [*read_files(tmp_path)] == ["folder/new picture"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_results_replace_earlier_ones_together_or_not_at_all(tmp_path):
    def write(text: str) -> None:
        with atomic_files(tmp_path) as new:
            write_files(new, {"model": text, f"evaluation/{text}": ""})
            if text == "cut off":
                raise InterruptedError
            (new / "result").write_text(text)

    write("first")
    with pytest.raises(InterruptedError):
        write("cut off")
    assert read_files(tmp_path) == {"evaluation/first": b"", "model": b"first", "result": b"first"}
    write_files(tmp_path, {".partial/model": "half"})  # left by a kill
    write("later")
    assert read_files(tmp_path) == {"evaluation/later": b"", "model": b"later", "result": b"later"}
    assert not (tmp_path / ".partial").exists()


def test_threads_that_write_the_same_file_do_not_meet_in_their_temporary_ones(tmp_path):
    path, together = tmp_path / "same.png", Barrier(2)

    def write(content: bytes) -> None:
        with atomic_file(path) as temporary:
            together.wait()
            temporary.write_bytes(content)
            together.wait()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, (b"one", b"two")))
    assert path.read_bytes() in (b"one", b"two")
    assert [file.name for file in tmp_path.iterdir()] == ["same.png"]


@dataclass(frozen=True)
class Numbers:
    mean: np.float64
    count: np.int64


def test_numbers_that_json_does_not_have_are_strings_that_float_reads(tmp_path):
    values = {
        "loss": float("nan"),
        "rates": (float("inf"), np.float32("-inf"), 1.5),
        "nested": Numbers(mean=np.float64("nan"), count=np.int64(3)),
    }
    write_json(tmp_path / "x.json", values)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    read = json.loads((tmp_path / "x.json").read_text(), parse_constant=refuse)
    nested = {"mean": "NaN", "count": 3}
    assert read == {"loss": "NaN", "rates": ["Infinity", "-Infinity", 1.5], "nested": nested}
    assert [float(text) for text in read["rates"][:2]] == [float("inf"), float("-inf")]
    assert dump_json({"a": [1.0]}, indent=None) == '{"a": [1.0]}'
