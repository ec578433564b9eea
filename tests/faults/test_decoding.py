"""What ingest accepts TensorFlow decodes; a decoder may die or hang."""

from __future__ import annotations

import os
import signal

import pytest

from benchmarks.decoding import compare
from tests.support.small_data import picture
from throughline.data.encodings import decode_probe as module
from throughline.data.encodings.decode_probe import Decoder
from throughline.data.encodings.image_soundness import is_sound

pytestmark = pytest.mark.slow

FILES, SEED = 200, 20


def test_ingest_accepts_no_file_that_tensorflow_cannot_decode(tmp_path):
    seen, disagreements = compare(FILES, SEED, tmp_path)
    assert not disagreements, f"python -m benchmarks.decoding --files {FILES} --seed {SEED}"
    assert seen["accepted"] > 0 and seen["refused by both"] > 0


@pytest.mark.parametrize(("suffix", "mode"), [("png", "L"), ("jpg", "RGB")])
def test_files_as_they_are_usually_written_need_no_second_opinion(tmp_path, suffix, mode):
    picture(1, mode=mode).save(tmp_path / f"x.{suffix}")
    data = (tmp_path / f"x.{suffix}").read_bytes()
    assert is_sound(data) and not is_sound(data[:-1]) and not is_sound(data + b"\n")


def test_a_decoder_that_dies_or_hangs_makes_one_file_unusable_and_no_more(tmp_path, monkeypatch):
    picture(1).save(tmp_path / "x.png")
    data = (tmp_path / "x.png").read_bytes()
    with Decoder() as decoder:
        assert decoder.find_problem(data, height=30, width=40) is None
        for happens in (signal.SIGKILL, signal.SIGSTOP):
            os.kill(decoder._process.pid, happens)
            with monkeypatch.context() as patched:
                patched.setattr(module, "ANSWER_S", 1.0)  # a stopped one never answers
                said = decoder.find_problem(data, height=30, width=40)
            assert "crashes, or takes longer" in said
            assert decoder.find_problem(data, height=30, width=40) is None
        said = decoder.find_problem(data, height=40, width=30)
        assert said == "TensorFlow decodes 40×30 pixels of 30×40"
        assert "cannot decode it: Invalid PNG" in decoder.find_problem(
            data[:-12], height=30, width=40
        )
        process = decoder._process
    assert process.poll() is not None
