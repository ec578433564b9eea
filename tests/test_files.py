"""Files are complete or absent, also where several threads write the same one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from tasks.files import atomic_file


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
