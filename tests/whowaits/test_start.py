"""How a script is started, what it sees and may save, how it ends, and how it is changed."""

import builtins
import io
import json
import os
import pickle
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from tests.support.shared_servers import ROOT
from tests.support.small_data import write_files
from whowaits import callers
from whowaits.changes.advice import Edit
from whowaits.changes.edits import CannotBeWritten, edit_source
from whowaits.cli import find_interpreter, main
from whowaits.fail_if import Condition
from whowaits.hooks import saves
from whowaits.hooks.loops import LoopWatch
from whowaits.running import run_script
from whowaits.session import Options, Session
from whowaits.timing.rounds import Block, Round

SOURCES = ROOT / "whowaits" / "src"


def run(*command, python=sys.executable, **options):
    given = {"capture_output": True, "text": True, "check": False, "timeout": 120, **options}
    return subprocess.run([python, *command], **given)


def whowaits(*arguments, **options):
    return run("-m", "whowaits", "--python", sys.executable, *arguments, **options)


SEES = """import json, os, sys
{imports}
print(json.dumps([
    sys.argv, sys.stdin.read(), __name__, __file__, __package__, __spec__ and __spec__.name,
    sys.path, sibling.seen, sorted(vars(sys.modules["__main__"])),
    [name for name in ("numpy", "keras", "tensorflow", "torch") if name in sys.modules],
    {{key: value for key, value in os.environ.items() if key not in ("_", "PYTHONPATH")}},
]))
sys.exit(3)
"""
FILES = {
    "own/train.py": SEES.format(imports="import statistics as sibling"),
    "own/statistics.py": "seen = 'the script has its own module of that name'",
    "own/dataclasses.py": "raise RuntimeError('a sibling that nobody asked for')",
    "own/report.py": "raise RuntimeError('a sibling that nobody asked for')",
    "pkg/__init__.py": "import sys\nargv = list(sys.argv)",
    "pkg/sibling.py": "from . import argv\nseen = argv",
    "pkg/__main__.py": SEES.format(imports="from . import sibling"),
}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("given", "file"), [(["own/train.py"], "own/train.py"), (["-m", "pkg"], "pkg/__main__.py")]
)
def test_a_script_sees_what_it_sees_without(tmp_path, given, file):
    options = {"cwd": write_files(tmp_path, FILES), "input": "given"}
    given = [*given, "--", "--rows", "5", "--", "-m", "x"]
    done, alone = whowaits(*given, **options), run(*given, **options)
    shown, _, report = done.stdout.partition("\n")
    assert json.loads(shown) == json.loads(alone.stdout), done.stderr
    assert done.returncode == alone.returncode == 3
    assert report.startswith(f"{file}: undecided\n"), "a module is named by its file"


@pytest.mark.integration
def test_children_end_as_they_would_and_leave_the_standard_output_to_the_json(tmp_path):
    (tmp_path / "train.py").write_text("""
import os, sys
codes = []
for end in (lambda: os._exit(5), lambda: sys.exit(6), lambda: 1 / 0):
    if os.fork() == 0:
        end()
    codes.append(os.wait()[1] >> 8)
print(codes, flush=True)
os.system("echo a child of the shell")
""")
    done = whowaits("--json", "train.py", cwd=tmp_path)
    assert done.returncode == 2 and json.loads(done.stdout)["verdict"] == "undecided"
    assert "[5, 6, 1]\na child of the shell\n" in done.stderr
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.slow
def test_every_python_from_3_9_on_that_is_here_runs_it(tmp_path):
    (tmp_path / "train.py").write_text("print('ran')\n")
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(SOURCES)}}
    found = filter(None, (shutil.which(f"python3.{minor}") for minor in range(9, 14)))
    work = [each for each in found if not subprocess.call([each, "-c", ""])]
    for each in (sys.executable, *work):
        done = run("-m", "whowaits", "--python", each, "train.py", python=each, **options)
        assert done.stdout.startswith("ran\ntrain.py: undecided\n"), (each, done)


def test_an_older_python_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 8))
    with pytest.raises(SystemExit, match=r"is Python 3\.8, but 3\.9 or later is needed$"):
        runpy.run_path(str(SOURCES / "whowaits" / "start.py"), run_name="__main__")


@pytest.fixture
def run_here(tmp_path, monkeypatch):
    """Runs a source in this process and this folder; returns the exit code and the report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(callers, "HERE", str(tmp_path))
    monkeypatch.setattr(callers, "_own", [])
    for name, value in (("argv", []), ("path", sys.path[:]), ("excepthook", sys.__excepthook__)):
        monkeypatch.setattr(sys, name, value)

    def run(source, open_training=lambda session: None, script="train.py", **options):
        Path("train.py").write_text(source)
        written = []
        session = Session(Options(script=script, **options), written.append)
        open_training(session)
        return run_script(session, []), "".join(written)

    with patch.dict(sys.modules):
        yield run


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("", 2, ""),
        ("raise ValueError('its own')", 1, "ValueError: its own"),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('a message')", 1, "a message\n"),
        ("import no_such_module", 1, "--python sets another Python"),
        ("def f(:", 1, "SyntaxError"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_a_script_ends_as_it_would(run_here, capsys, source, code, said):
    found, report = run_here(source)
    assert found == code and report.startswith("train.py: undecided\n")
    assert ("it was interrupted" in report) == (code == 130)
    error = capsys.readouterr().err
    assert said in error
    if said.startswith("ValueError"):
        frames = [line for line in error.splitlines() if line.startswith("  File")]
        assert len(frames) == 1 and "train.py" in frames[0], "none of ours"
    if not source:
        assert run_here(source, fail_if=(Condition.parse("stall > 20"),))[0] == 4


@pytest.mark.parametrize(("rounds", "code"), [(0, 1), (3, 0)])
def test_a_script_that_fails_over_repeated_batches_was_measured_or_fails(run_here, rounds, code):
    def open_training(session):
        timing, block = session.open("fit").timing, Block(steps=9, work_s=1.0)
        timing.took, timing.rounds = True, [Round(block, block, rested=True)] * rounds

    found, report = run_here("raise IndexError('its own')", open_training)
    assert found == code and "IndexError('its own')" in report


def test_a_module_is_refused_as_by_python(run_here, capsys):
    assert run_here("", script="email", as_module=True) == (2, "")
    error = capsys.readouterr().err
    assert error.startswith("whowaits: ") and error.count("\n") == 1
    assert "'email' is a package and cannot be directly executed" in error


def test_a_file_is_named_as_in_the_folder_of_the_command(monkeypatch):
    monkeypatch.setattr(callers, "HERE", "/home")
    assert callers.name_from_here("/home/pkg/train.py") == "pkg/train.py"
    assert callers.name_from_here("/homework/pkg/train.py") == "train.py"


def test_a_stream_of_the_scripts_own_that_fails_ends_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", object())
    Session(Options(), print).say("a line")


def test_a_report_is_written_to_its_end_before_another_thread_ends_the_process():
    begun, go_on, written = threading.Event(), threading.Event(), []

    def end():
        return session.print_report(), len(written)

    session = Session(Options(), lambda text: (begun.set(), go_on.wait(60), written.append(text)))
    with ThreadPoolExecutor(2) as threads:
        ends = [threads.submit(end)]
        assert begun.wait(60)
        ends.append(threads.submit(end))
        go_on.set()
    assert [each.result() for each in ends] == [(2, 1), (2, 1)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere.py"], "there is no file nowhere.py"),
        (["-m", __file__], "-m needs the name of a module"),
        (["/opt/bin/accelerate", "launch", __file__], "name the script itself"),
        (["-m", "torch.distributed.launch", __file__], "torch.distributed.launch starts a"),
        (["--fail-if", "stall == 3", __file__], "is not METRIC OPERATOR NUMBER"),
        (["--fail-if", "stal > 3", __file__], "is not METRIC OPERATOR NUMBER"),
        (["--fail-if", "stall > 3.3.3", __file__], "--fail-if: 3.3.3 is not a number"),
        (["--seconds", "nan", __file__], "--seconds must be a finite number above 0, but is nan"),
        (["--training", "0", __file__], "--training must be 1 (the first training) or more"),
        (["--patch", "--keep", __file__], "--patch cannot be combined with --keep"),
        (["--python", "/nowhere/python", __file__], "/nowhere/python is not an executable"),
    ],
)
def test_what_cannot_be_started_is_refused(capsys, arguments, reason):
    assert main(arguments) == 2
    assert reason in capsys.readouterr().err


def test_the_interpreter_is_the_users(tmp_path, monkeypatch):
    folders = ("system", "local/.venv", "conda", "active")
    system, local, conda, active = (tmp_path / folder / "bin/python" for folder in folders)
    for path in (system, local, conda, active):
        path.parent.mkdir(parents=True)
        path.touch(0o755)
    monkeypatch.setattr("whowaits.cli.TRAINING_LIBRARIES", ())
    for name, value in (("VIRTUAL_ENV", ""), ("CONDA_PREFIX", ""), ("PATH", system.parent)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)
    assert find_interpreter() == str(system) == find_interpreter(str(system))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "system"))  # as `uvx` makes it
    assert find_interpreter() == sys.executable and find_interpreter("/nowhere/python") is None
    monkeypatch.chdir("local")
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    for environment, interpreter in (("base", local), ("own", conda)):
        monkeypatch.setenv("CONDA_DEFAULT_ENV", environment)
        assert find_interpreter() == str(interpreter)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    assert find_interpreter() == str(active)


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


SCRIPT = b"""import tensorflow as t
data = (
    t.data.Dataset.range(4)
    .map(lambda x: (x, "\xc3\xa9"),
    )  # a comment
    .map((decode))
    .batch(8)
)
data = data.map(decode, 4)
data = data.map(decode).map(crop).batch(3)
fit(data.map(*given), data.map(f, **more))
rows = files.flat_map(
    g,  # rows
)
rows = files.flat_map(name="\xc3\xa9", map_func=g)
x = DataLoader(
    data, num_workers=0, batch_size=8,
)
"""
PARALLEL = "num_parallel_calls=tf.data.AUTOTUNE"
WHOLE = "sampler=BatchSampler(RandomSampler(dataset), 8, False)"
AHEAD = ".prefetch(tf.data.AUTOTUNE)"
ORDERED = "num_parallel_calls=t.data.AUTOTUNE, deterministic=True"
INTERLEAVE = "interleave(num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)"


@pytest.mark.parametrize(
    ("edits", "changed"),
    [
        ([(4, "map", PARALLEL), (7, "batch", AHEAD)],
         {4: '    .map(lambda x: (x, "é"), num_parallel_calls=t.data.AUTOTUNE,',
          7: "    .batch(8).prefetch(t.data.AUTOTUNE)"}),
        ([(6, "map", PARALLEL)], {6: "    .map((decode), num_parallel_calls=t.data.AUTOTUNE)"}),
        ([(7, "batch", ".cache().shuffle(9)"), (7, "batch", AHEAD)],
         {7: "    .batch(8).cache().shuffle(9).prefetch(t.data.AUTOTUNE)"}),
        ([(10, "map", ".cache()", "decode")],
         {10: "data = data.map(decode).cache().map(crop).batch(3)"}),
        ([(12, "flat_map", INTERLEAVE), (15, "flat_map", INTERLEAVE)],
         {12: "rows = files.interleave(",
          13: f"    g, {ORDERED},  # rows",
          15: f'rows = files.interleave(name="é", map_func=g, {ORDERED})'}),
        ([(16, "DataLoader", "num_workers=12"), (16, "DataLoader", "persistent_workers=True")],
         {17: "    data, num_workers=12, batch_size=8, persistent_workers=True,"}),
    ],
    ids=["lines", "parentheses", "one call", "given", "another method", "a constant"],
)  # fmt: skip
def test_an_edit_changes_its_line_and_nothing_else(edits, changed):
    edits = [Edit(f"train.py:{line}", *edit) for line, *edit in edits]
    expected = SCRIPT.decode().splitlines()
    for number, line in changed.items():
        expected[number - 1] = line
    assert edit_source(SCRIPT, "train.py", edits).decode().splitlines() == expected


def test_a_call_is_rewritten_so_that_the_dataset_is_asked_for_whole_batches():
    source = b"import torch as t\nrun(DataLoader(rows, N, shuffle=True, num_workers=2))  # here\n"
    sampler = "t.utils.data.BatchSampler(t.utils.data.RandomSampler(rows), N, False)"
    call = f"DataLoader(rows, batch_size=None, sampler={sampler}, num_workers=2)"
    edited = edit_source(source, "train.py", [Edit("train.py:2", "DataLoader", WHOLE)])
    assert edited.decode() == f"import torch as t\nrun({call})  # here\n"


@pytest.mark.parametrize(
    ("source", "edit", "reason"),
    [
        (b"f(a, num_workers=n)", Edit("train.py:1", "f", "num_workers=2"), "num_workers=n, which"),
        (b"f(a, **b)", Edit("train.py:1", "f", "num_workers=2"), "may have num_workers already"),
        (SCRIPT, Edit("train.py:10", "map", PARALLEL), "train.py:10 has 2 calls of map to edit"),
        (SCRIPT, Edit("train.py:4", "map", "", given="decode"), "has no call of map to edit"),
        (SCRIPT, Edit("lib/a.py:7", "batch", AHEAD), "batch is called at lib/a.py:7, not in train"),
        (SCRIPT, Edit("", "batch", AHEAD), "batch is called at a line that was not seen"),
        (SCRIPT + b"flat_map(g)", Edit("train.py:19", "flat_map", INTERLEAVE), "flat_map"),
        (SCRIPT + b'd.flat_map(g, "x")', Edit("train.py:19", "flat_map", INTERLEAVE), "flat_map"),
        (b"from tensorflow import data\nd.map(f)", Edit("train.py:2", "map", PARALLEL),
         "has no `import tensorflow`"),
        (b"import torch\nDataLoader(rows(), 8)", Edit("train.py:2", "DataLoader", WHOLE),
         "with a dataset that has a name"),
        (b"# coding: latin-1\n# \xe9\nd.map(f)", Edit("train.py:3", "map", PARALLEL),
         "cannot be read as Python in UTF-8"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_by_name(source, edit, reason):
    with pytest.raises(CannotBeWritten, match=reason):
        edit_source(source, "train.py", [edit])
