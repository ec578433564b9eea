"""Asks TensorFlow's image decoder, in a separate process, about doubtful files.

One process answers all questions, so that TensorFlow starts once, outside of the process that asks.
A file that crashes or stalls that process is unusable; the next question starts a new process.
"""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from throughline.shared.gc_pause import import_tensorflow_alone

START_S = 300.0  # TensorFlow on a cold disk and busy cores
ANSWER_S = 60.0


class Decoder:
    """A process that decodes images, started by the first question; any thread may ask."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._questions: Connection | None = None
        self._turn = threading.Lock()

    def find_problem(self, data: bytes, *, height: int, width: int) -> str | None:
        """Return why TensorFlow cannot use these bytes as an image of this size, or None."""
        with self._turn:
            questions, answer = self._questions or self._start(), None
            with suppress(EOFError, OSError):  # the process has ended
                questions.send_bytes(data)
                answer = questions.recv() if questions.poll(ANSWER_S) else None
            if answer is None:
                self.close()
                return f"TensorFlow's decoder crashes, or takes longer than {ANSWER_S:.0f} s"
        if "problem" in answer:
            return f"TensorFlow cannot decode it: {answer['problem']}"
        if answer["size"] != [height, width]:
            return (
                f"TensorFlow decodes {answer['size'][1]}×{answer['size'][0]} of"
                f" {width}×{height} pixels"
            )
        return None

    def _start(self) -> Connection:
        root = str(Path(__file__).parents[3].absolute())
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        module = "throughline.data.encodings.decode_probe"
        self._questions, answers = Pipe()
        with answers:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(answers.fileno())],
                pass_fds=[answers.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "-1"},
            )
        started = False
        with suppress(EOFError):
            started = self._questions.poll(START_S) and self._questions.recv()
        if not started:
            self.close()
            raise RuntimeError(
                f"`{sys.executable} -m {module} 0` does not start; run it by hand to see why"
            )
        return self._questions

    def close(self) -> None:
        if self._process and self._questions:
            self._process.kill()
            self._process.wait()
            self._questions.close()
        self._process = self._questions = None


def answer_questions(questions: Connection) -> None:
    """Decode images, each given as its bytes; answer each with its size or its problem."""
    import_tensorflow_alone()
    import tensorflow as tf

    questions.send(True)
    while True:
        try:
            data = questions.recv_bytes()
        except EOFError:  # nobody asks any more
            return
        try:
            image = tf.io.decode_image(data, channels=3, expand_animations=False)
            questions.send({"size": [int(side) for side in image.shape[:2]]})
        except tf.errors.OpError as error:
            said = error.message.rpartition("}}")[2].partition("[Op:")[0]
            questions.send({"problem": " ".join(said.split())})


if __name__ == "__main__":
    answer_questions(Connection(int(sys.argv[1])))
