"""What ingest accepts TensorFlow decodes: files mutated at random, and a decoder that dies or
hangs.
"""

from __future__ import annotations

import io
import os
import random
import signal
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf

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


@pytest.mark.parametrize("kind", [b"bKGD", b"sBIT", b"iTXt", b"zTXt"])
def test_what_pngs_say_of_themselves_changes_no_pixel(kind):
    """Whatever the content of such a chunk is, also where it breaks the standard."""
    draw, file = random.Random(str(kind)), io.BytesIO()
    image = picture(3)
    image.save(file, "PNG")
    plain = file.getvalue()
    for content in [b"", b"\3" * 3, b"\0\3" * 3, *(draw.randbytes(n) for n in range(1, 40))]:
        if kind == b"zTXt":  # Pillow refuses others
            content = b"Comment\0\0" + zlib.compress(content)
        chunk = kind + content
        checked = struct.pack(">I", len(content)) + chunk + struct.pack(">I", zlib.crc32(chunk))
        data = plain[:33] + checked * 2 + plain[33:]
        assert is_sound(data) == (kind in (b"iTXt", b"zTXt"))
        data = plain[:33] + checked + plain[33:]
        assert is_sound(data)
        seen = tf.io.decode_png(data, channels=3).numpy()
        np.testing.assert_array_equal(seen, np.asarray(image))


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
