"""Asks TensorFlow's image decoder, in a process of its own, about doubtful files.

One process answers all questions, so that TensorFlow starts once, outside of the process that asks.
A file that crashes or stalls the process is unusable; the next question starts a new one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

from throughline.shared.gc_pause import import_tensorflow_alone

START_S = 300.0  # TensorFlow on a cold disk and busy cores
ANSWER_S = 60.0
_LENGTH = 8


class Decoder:
    """A decoding process, which ends with the block; any thread may ask."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def find_problem(self, data: bytes, *, height: int, width: int) -> str | None:
        """Return why TensorFlow cannot use these bytes as an image of this size, or None."""
        with self._turn:
            process = self._started()
            answer = self._answer(process, data)
            if answer is None:
                self._end()
                return f"TensorFlow's decoder crashes, or takes longer than {ANSWER_S:.0f} s"
        if "problem" in answer:
            return f"TensorFlow cannot decode it: {answer['problem']}"
        if answer["size"] != [height, width]:
            return (
                f"TensorFlow decodes {answer['size'][1]}×{answer['size'][0]} pixels of"
                f" {width}×{height}"
            )
        return None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            root = str(Path(__file__).parents[3].absolute())
            paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
            self._process = subprocess.Popen(
                [sys.executable, "-m", "throughline.data.encodings.decode_probe"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "-1"},
            )
            if _within(START_S, self._process, _read_line) is None:
                raise RuntimeError(
                    f"{sys.executable} -m throughline.data.encodings.decode_probe does not start;"
                    " run it by hand to see why"
                )
        return self._process

    @staticmethod
    def _answer(process: subprocess.Popen[bytes], data: bytes) -> dict | None:
        def ask(process: subprocess.Popen[bytes]) -> bytes | None:
            assert process.stdin  # noqa: S101
            process.stdin.write(len(data).to_bytes(_LENGTH, "little"))
            process.stdin.write(data)
            process.stdin.flush()
            return _read_line(process)

        line = _within(ANSWER_S, process, ask)
        return None if line is None else json.loads(line)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _read_line(process: subprocess.Popen[bytes]) -> bytes | None:
    assert process.stdout  # noqa: S101
    return process.stdout.readline() or None


def _within(limit_s: float, process: subprocess.Popen[bytes], exchange) -> bytes | None:  # noqa: ANN001
    """Return what an exchange with a process returns, or None if it ends or takes too long."""
    overdue = threading.Timer(limit_s, process.kill)
    overdue.start()
    try:
        return exchange(process)
    except BrokenPipeError:
        return None
    finally:
        overdue.cancel()


def answer_questions(questions: BinaryIO, answers: BinaryIO) -> None:
    """Decode images, each given as its length and its bytes; answer each with a line of JSON."""
    import_tensorflow_alone()
    import tensorflow as tf

    answers.write(b"{}\n")
    answers.flush()
    while length := questions.read(_LENGTH):
        data = questions.read(int.from_bytes(length, "little"))
        try:
            image = tf.io.decode_image(data, channels=3, expand_animations=False)
            answer: dict = {"size": [int(side) for side in image.shape[:2]]}
        except tf.errors.OpError as error:
            answer = {
                "problem": " ".join(error.message.rpartition("}}")[2].partition("[Op:")[0].split())
            }
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    # Keep what libraries print out of the answers.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as own:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        answer_questions(sys.stdin.buffer, own)
