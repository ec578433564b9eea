"""Data of one's own that faults must not touch, and images that cannot be decoded."""

import os
import random
import shutil
import signal
from contextlib import closing

import pytest

from tests.fuzz.fuzz_parsers import INSPECT, encode_images, mutate, parse_image
from tests.support.project import SMALL, make_project, run, write_params
from tests.support.small_data import picture
from throughline.data.encodings import decode_probe as module
from throughline.data.encodings.decode_probe import Decoder
from throughline.data.encodings.image_files import is_sound

pytestmark = pytest.mark.slow

OWN = ("data/raw/mine/data.npz", "data/raw/fashion_mnist/own.npz", "data/raw/none/own.npz")


@pytest.fixture
def project(tmp_path, array_file):
    """A project with the user's own files below data/raw."""
    folder = make_project(tmp_path / "project", array_file)
    for name in OWN:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(array_file, path)
    return folder


def test_files_below_data_raw_survive_every_change_of_fetch(project):
    def survivors() -> tuple[str, ...]:
        return tuple(name for name in OWN if (project / name).exists())

    output = run(project, "dvc", "repro", "fetch", code=None)
    assert "data/raw/none holds files that fetch did not write" in output
    assert survivors() == OWN
    shutil.rmtree(project / "data" / "raw" / "none")
    run(project, "dvc", "repro", "fetch")
    assert survivors() == OWN[:2]
    write_params(project, SMALL | {"data": SMALL["data"] | {"fetch": "fashion_mnist"}})
    output = run(project, "dvc", "repro", "fetch", code=None)
    assert "UnexpectedFiles" in output or "DataNotFound" in output
    write_params(project, SMALL)
    (project / "data" / "raw" / "none" / "late.txt").write_text("mine")
    run(project, "dvc", "repro", "--force", "fetch", code=None)
    assert survivors() == OWN[:2]
    assert (project / "data" / "raw" / "none" / "late.txt").exists()


FILES, SEED = 200, 20


def test_ingest_accepts_no_file_that_tensorflow_cannot_decode(tmp_path):
    draw, valid = random.Random(SEED), encode_images()
    with INSPECT:
        accepted = [parse_image(mutate(draw.choice(valid), draw), tmp_path) for _ in range(FILES)]
    assert any(accepted) and not all(accepted)


@pytest.mark.parametrize(("suffix", "mode"), [("png", "L"), ("jpg", "RGB")])
def test_files_as_they_are_usually_written_need_no_second_opinion(tmp_path, suffix, mode):
    picture(1, mode=mode).save(tmp_path / f"x.{suffix}")
    data = (tmp_path / f"x.{suffix}").read_bytes()
    assert is_sound(data) and not is_sound(data[:-1]) and not is_sound(data + b"\n")


def test_a_decoder_that_dies_or_hangs_makes_one_file_unusable_and_no_more(tmp_path, monkeypatch):
    picture(1).save(tmp_path / "x.png")
    data = (tmp_path / "x.png").read_bytes()
    with closing(Decoder()) as decoder:
        assert decoder.find_problem(data, height=30, width=40) is None
        for happens in (signal.SIGKILL, signal.SIGSTOP):
            os.kill(decoder._process.pid, happens)
            with monkeypatch.context() as patched:
                patched.setattr(module, "ANSWER_S", 1.0)  # a stopped one never answers
                said = decoder.find_problem(data, height=30, width=40)
            assert "crashes, or takes longer" in said
            assert decoder.find_problem(data, height=30, width=40) is None
        said = decoder.find_problem(data, height=40, width=30)
        assert said == "TensorFlow decodes 40×30 of 30×40 pixels"
        said = decoder.find_problem(data[:-12], height=30, width=40)
        assert "cannot decode it: Invalid PNG" in said
        process = decoder._process
    assert process.poll() is not None
