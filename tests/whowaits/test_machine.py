"""What other programs take of the machine, saves that are held back, and batches that are kept."""

import builtins
import io
import itertools
import os
import pickle
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.small_data import write_files
from whowaits.hooks import saves
from whowaits.hooks.loops import LoopWatch
from whowaits.session import Options, Session
from whowaits.timing import machine
from whowaits.timing.batches import BatchesTaken, count_examples, keep_batches


class Clocks:
    """In the place of `time`."""

    def __init__(self):
        self.now = self.cpu = 0.0
        self.perf_counter, self.process_time = lambda: self.now, lambda: self.cpu

    def sleep(self, seconds):
        self.now += seconds

    def work(self, seconds):
        self.now, self.cpu = self.now + seconds, self.cpu + seconds


@pytest.fixture
def clocks(tmp_path, monkeypatch):
    for name, value in {"time": Clocks(), "PROC": tmp_path, "_ticks": lambda: 100}.items():
        monkeypatch.setattr(machine, name, value)
    return machine.time


def write_proc(folder, *, busy, own, ended, child=None, other=0):
    """What /proc says [ticks]: of each core, this process, a child, and another process."""
    cores = sorted(os.sched_getaffinity(0))
    (folder / "stat").write_text("".join(f"cpu{core} {busy} 0 0 9 0 0 0 0\n" for core in cores))
    processes = [(os.getpid(), 1, own, ended), (999_998, 1, other, 0)]
    processes += [(999_999, os.getpid(), child, 0)] if child is not None else []
    shutil.rmtree(folder / "999999", ignore_errors=True)
    for pid, parent, ticks, ended_ticks in processes:
        fields = f"S {parent} 0 0 0 0 0 0 0 0 0 {ticks} 0 {ended_ticks} 0"
        write_files(folder, {f"{pid}/stat": f"{pid} (a program) {fields}\n"})
    return len(cores)


@pytest.mark.parametrize("others_ticks", [0, 100])
def test_what_ended_workers_took_is_no_other_programs(tmp_path, clocks, others_ticks):
    cores = write_proc(tmp_path, busy=1000, own=50, ended=7, child=300)
    others = machine.OtherPrograms()
    clocks.sleep(2.0)
    mine = 60 + 90  # the child has taken 90 more, and has ended
    busy = 1000 + mine // cores + others_ticks
    write_proc(tmp_path, busy=busy, own=110, ended=7 + 390, other=others_ticks * cores)
    share, who = others.read()
    assert share == pytest.approx(others_ticks / 2, abs=1)
    assert who == "a program (process 999998)" or not others_ticks


def test_an_input_that_works_on_is_not_idle_but_reading_of_many_processes_is(clocks, monkeypatch):
    """A machine of many cores has a thousand processes of its kernel alone."""
    with monkeypatch.context() as works:
        works.setattr(clocks, "sleep", clocks.work)
        assert not machine.wait_until_idle(0.3)
    assert clocks.now == pytest.approx(0.3, abs=0.03), "not for longer than was asked"
    monkeypatch.setattr(machine, "_processes", lambda: clocks.work(0.03) or {})
    assert machine.wait_until_idle(5.0)


V1 = ("5:cpu,cpuacct:/a/b\n4:memory:/a/b\n", "memory.limit_in_bytes", "memory.usage_in_bytes")
V2 = ("0::/a/b\n", "memory.max", "memory.current")


@pytest.mark.parametrize(("version", "group"), [(V2, "a/b"), (V2, "a"), (V1, "memory/a")])
def test_a_control_group_limits_memory_but_for_cached_files(tmp_path, monkeypatch, version, group):
    listed, limit, usage = version
    statistics = f"anon 600\n{'total_' if version is V1 else ''}inactive_file 300\n"
    write_files(tmp_path, {"self/cgroup": listed, f"cgroup/{group}/memory.stat": statistics})
    write_files(tmp_path / "cgroup" / group, {limit: "1000", usage: "900"})
    monkeypatch.setattr(machine, "PROC", tmp_path)
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "cgroup")
    assert machine.memory_left_bytes() == 400


class Trainer:
    def save(self, path):
        Path(path).write_text("saved by a trainer")


def save(value, file):
    file.write(value) if hasattr(file, "write") else Path(file).write_bytes(value)


LIBRARY = SimpleNamespace(__name__="library.io", save=save, Trainer=type("Special", (Trainer,), {}))


@pytest.fixture
def loops(tmp_path, monkeypatch):
    """Loops whose saves are left out from now on, in a folder with a checkpoint of before."""
    patched = {**saves.FILE_CALLS, builtins: ["open"], io: ["open"]}
    for owner, names in (*patched.items(), (Trainer, ["save"]), (LIBRARY, ["save"])):
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.chdir(tmp_path)
    Path("best").write_text("of before")
    loops = LoopWatch(Session(Options(script="train.py"), lambda _: None))
    watch = saves.SaveWatch(loops.session, lambda: loops.taking)
    watch._patch(LIBRARY, ("save", "Trainer.save", "Trainer.none", "Nobody.save"))
    loops.session.saves.on_first = watch.watch_files
    LIBRARY.Trainer().save("early")
    assert Path("early").read_text() == "saved by a trainer", "nothing has been repeated yet"
    loops.session.saves.leave_out()
    return loops


@pytest.mark.parametrize(
    "do",
    [
        lambda: LIBRARY.save(b"x", "best"),
        lambda: LIBRARY.Trainer().save("best"),
        lambda: pickle.dump([1], open("best", "wb")),  # noqa: PTH123, SIM115 - as scripts do
        lambda: Path("best").write_text("x"),
        lambda: shutil.copyfile("early", "best"),
        lambda: os.replace("early", "best"),
        lambda: os.replace("never written", "best"),
        lambda: shutil.copy("never written", "best"),
        lambda: Path("best").symlink_to("early"),
        lambda: Path("best").unlink(),
        lambda: shutil.rmtree("."),
    ],
)
def test_what_was_saved_before_is_neither_replaced_nor_deleted(loops, capsys, do):
    do()
    assert Path("best").read_text() == "of before" and Path("early").exists()
    do()
    said = capsys.readouterr().err
    assert said.count("left out") == 1 and f"{Path(__file__).name}:" in said


def test_what_is_no_save_or_makes_a_batch_is_done_as_it_is(loops):
    buffer = io.BytesIO()
    LIBRARY.save(b"x", buffer)
    assert buffer.getvalue() == b"x"
    with open("log", "a") as file:  # noqa: PTH123
        file.write("one more line")
    assert Path("log").read_text() == "one more line", "it replaces nothing"
    with tempfile.TemporaryDirectory(dir=".") as folder:
        Path(folder, "folder").mkdir()
    assert not Path(folder).exists()
    name = "site-packages/library.py"  # such as one that compiles what it is given
    exec(compile("open('compiled', 'w').close()", name, "exec"), {})
    assert Path("compiled").exists()

    def decode():  # which keeps in a file what it makes; what saves a model does not
        Path("best").write_text(Path("best").read_text() + ", decoded")
        LIBRARY.save(b"x", "early")

    loops.pass_by(decode)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(decode).result()
    assert Path("best").read_text() == "of before, decoded, decoded"
    assert Path("early").read_text() == "saved by a trainer"


class Sparse(SimpleNamespace):
    """As PyTorch's sparse and nested tensors: exceptions say what they have not."""

    dtype = None

    def __getattr__(self, name):
        raise RuntimeError(f"{name} is not defined for sparse tensors")


def test_batches_are_kept_up_to_a_number_and_a_time_whatever_they_say_of_their_size():
    each_half_second = itertools.count(step=0.5).__next__
    assert len(keep_batches(lambda: ([1],)).batches) == 64
    assert len(keep_batches(lambda: ([1],), clock=each_half_second).batches) == 5, "more than 2 s"
    assert not keep_batches(lambda: None).batches
    for batch, examples in (({"texts": Sparse()}, None), ([Sparse(), Sparse(shape=(8, 2))], 8)):
        assert count_examples(batch) == examples
        assert keep_batches(iter([(batch,), None]).__next__).batches == [batch]
    for counts, ended, kept in (([8, 8], True, 2), ([8, 3], True, 1), ([8, 3], False, 2)):
        taken = BatchesTaken([Sparse(shape=(count,)) for count in counts], ended=ended)
        taken.drop_remainder(8)
        assert len(taken.batches) == kept, "a smaller last batch is no batch of the model"
