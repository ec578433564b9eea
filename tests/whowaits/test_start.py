"""How a script is started: `whowaits.cli`, `whowaits.start`, `whowaits.running`,
`whowaits.__main__`; what it sees is what `python SCRIPT` shows it, or `python -m MODULE`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from whowaits.callers import name_from_here
from whowaits.cli import find_interpreter
from whowaits.running import _report_in_spite_of
from whowaits.session import Options, Session
from whowaits.timing import machine
from whowaits.timing.blocks import Block, Round

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "whowaits" / "src"
NOTHING = "it ended without a training that can be seen"


def whowaits(*arguments, **options):
    """The command, ended."""
    return subprocess.run(
        [sys.executable, "-m", "whowaits", "--python", sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


SEES = """
import json, os, sys, multiprocessing, sibling
print(json.dumps([
    sys.argv, __name__, __file__, sys.path, sibling.name, sorted(vars(sys.modules["__main__"])),
    [name for name in ("numpy", "keras", "tensorflow", "torch") if name in sys.modules],
    {key: value for key, value in os.environ.items() if key not in ("_", "PYTHONPATH")},
]))
"""


def test_a_script_sees_what_it_sees_without(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SEES)
    (tmp_path / "sibling.py").write_text("name = 'mine'\n")
    (tmp_path / "report.py").write_text("raise RuntimeError('a sibling that nobody asked for')\n")
    done = whowaits(script, "--", "--rows", 5, "--", "-x")
    alone = subprocess.run(
        [sys.executable, str(script), "--", "--rows", "5", "--", "-x"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    shown, _, report = done.stdout.partition("\n")
    assert json.loads(shown) == json.loads(alone.stdout), done.stderr
    assert report.startswith(f"{script}: undecided\n") and NOTHING in report
    assert done.returncode == 2


MODULE = """
import json, sys
from . import sibling
print(json.dumps([
    sys.argv, __name__, __file__, __package__, __spec__.name, sys.path, sibling.seen,
    sorted(vars(sys.modules["__main__"])),
]))
sys.exit(3)
"""


@pytest.mark.parametrize(("name", "file"), [("pkg.train", "train.py"), ("pkg", "__main__.py")])
def test_a_module_sees_what_it_sees_without(tmp_path, name, file):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("import sys\nargv = list(sys.argv)\n")
    (package / "sibling.py").write_text("from . import argv\nseen = argv\n")
    (package / file).write_text(MODULE)
    given = (name, "--", "--rows", "5", "--", "-m", "x")
    done = whowaits("-m", *given, cwd=tmp_path)
    alone = subprocess.run(
        [sys.executable, "-m", *given], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    shown, _, report = done.stdout.partition("\n")
    assert json.loads(shown) == json.loads(alone.stdout), done.stderr
    assert done.returncode == alone.returncode == 3
    assert report.startswith(f"pkg/{file}: undecided\n"), "it is named by its file"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pkg.nowhere", "No module named pkg.nowhere"),
        ("nowhere.train", "Error while finding module specification for 'nowhere.train'"),
        ("pkg", "'pkg' is a package and cannot be directly executed"),
    ],
)
def test_a_module_that_cannot_be_run_is_refused_as_python_does(tmp_path, name, said):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    done = whowaits("--json", "-m", name, cwd=tmp_path)
    alone = subprocess.run(
        [sys.executable, "-m", name], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 2 and not done.stdout
    assert said in alone.stderr and said in done.stderr
    assert done.stderr.startswith("whowaits: ") and done.stderr.count("\n") == 1, done.stderr


def test_an_error_of_a_modules_package_is_its_own(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("import no_such_module\n")
    (tmp_path / "pkg" / "train.py").touch()
    done = whowaits("-m", "pkg.train", cwd=tmp_path)
    assert done.returncode == 1 and "No module named 'no_such_module'" in done.stderr
    assert "Traceback" in done.stderr and "--python names another" in done.stderr


SEEN = """
import sys
from whowaits.callers import find_caller
print(find_caller(sys._getframe()))
"""


PACKAGE = ["pkg/train.py:1", "pkg/loops.py:4", "pkg/train.py:5"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (["-m", "pkg.train"], PACKAGE),
        (["pkg/train.py"], PACKAGE),
        (["-m", "alone"], ["alone.py:1", "alone.py:5"]),
    ],
)
def test_the_lines_of_an_installed_script_and_of_its_package_are_its_own(tmp_path, given, seen):
    installed = tmp_path / "site-packages"
    (installed / "pkg").mkdir(parents=True)
    for name in ("pkg/loops.py", "other.py"):
        (installed / name).write_text(SEEN)
    (installed / "pkg" / "train.py").write_text(f"import other, pkg.loops\n{SEEN}")
    (installed / "alone.py").write_text(f"import other\n{SEEN}")
    path = os.pathsep.join([str(installed), str(SOURCES)])
    done = whowaits(*given, cwd=installed, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout.splitlines()[: len(seen)] == seen, done


def test_a_file_is_called_as_in_the_folder_that_the_command_was_started_in(tmp_path, monkeypatch):
    monkeypatch.setattr("whowaits.callers.HERE", str(tmp_path))
    assert name_from_here(str(tmp_path / "pkg" / "train.py")) == "pkg/train.py"
    assert name_from_here(str(tmp_path.parent / "data.py")) == "data.py"


def test_a_stream_of_the_scripts_own_that_fails_ends_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", object())
    Session(Options(), print).say("a line")


def test_a_report_is_written_to_its_end_before_another_thread_ends_the_process():
    begun, go_on, codes, written = threading.Event(), threading.Event(), [], []

    def write(text):
        begun.set()
        assert go_on.wait(30)
        written.append(text)

    session = Session(Options(), write)
    threads = [
        threading.Thread(target=lambda: codes.append((session.print_report(), len(written))))
        for _ in range(2)
    ]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    go_on.set()
    for each in threads:
        each.join(30)
    assert codes == [(2, 1), (2, 1)]


@pytest.mark.parametrize(("rounds", "code"), [(0, 1), (3, 0)])
def test_a_script_that_failed_over_repeated_batches_was_measured_or_failed(rounds, code):
    session = Session(Options(), lambda _: None)
    timing = session.open("fit").timing
    timing.rounds = [Round(Block(steps=9, work_s=1.0), Block(steps=9, work_s=1.0), True)] * rounds
    assert _report_in_spite_of(IndexError("its own"), session) == code
    assert "IndexError('its own')" in session.trainings[0].notes[0]


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("raise ValueError('its own')", 1, "ValueError: its own"),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('a message')", 1, "a message"),
        ("import no_such_module", 1, "--python names another"),
        ("def f(:", 1, "SyntaxError"),
        ("print(input())", 2, ""),
        ("import os\nif os.fork() == 0:\n    os._exit(5)\nos.wait()", 2, ""),
        (
            "import os, sys\nif os.fork() == 0:\n    sys.exit(5)\nassert os.wait()[1] == 5 << 8",
            2,
            "",
        ),
        ("import os\nif os.fork() == 0:\n    1 / 0\nassert os.wait()[1] == 1 << 8", 2, "division"),
    ],
)
def test_a_script_ends_as_it_would(tmp_path, code, exit_code, said):
    script = tmp_path / "train.py"
    script.write_text(code)
    done = whowaits(script, input="given\n")
    assert done.returncode == exit_code, done
    assert said in done.stderr
    assert ("given" in done.stdout) == ("input" in code)
    assert done.stdout.count(": undecided") == 1, "of the process that was started"
    if "its own" in code:
        frames = [line for line in done.stderr.splitlines() if line.startswith("  File")]
        assert len(frames) == 1 and "train.py" in frames[0], done.stderr


def test_modules_next_to_the_script_are_its_own_whatever_they_are_called(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import statistics\nprint(statistics)")
    for name in ("statistics", "dataclasses"):
        (tmp_path / f"{name}.py").write_text(f"print('the script\\'s {name}')")
    done = whowaits(script)
    assert "the script's statistics" in done.stdout and "Traceback" not in done.stderr, done
    assert "the script's dataclasses" not in done.stdout


def test_json_has_the_standard_output_for_itself(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('from Python')\nos.system('echo from a child')\n")
    done = whowaits("--json", script)
    assert json.loads(done.stdout)["verdict"] == "undecided"
    assert "from Python" in done.stderr and "from a child" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere.py"], "there is no file nowhere.py"),
        (["-m", __file__], "-m takes the name of a module"),
        (["torchrun", "--nproc-per-node=2", __file__], "torchrun starts a training in processes"),
        (["/opt/bin/accelerate", "launch", __file__], "name the script itself"),
        (["-m", "torch.distributed.run", __file__], "torch.distributed.run starts a training in"),
        (["--fail-if", "stall", "nowhere.py"], "is not METRIC OPERATOR NUMBER"),
        (["--seconds", "0", __file__], "--seconds 0 is no time to measure for"),
        (["--seconds", "nan", __file__], "--seconds nan is no time to measure for"),
        (["--seconds", "inf", __file__], "--seconds inf is no time to measure for"),
        (["--training", "0", __file__], "--training 0 is no number of a training"),
        (["--python", "/nowhere/python", __file__], "/nowhere/python is no interpreter"),
    ],
)
def test_what_cannot_be_started_is_refused(arguments, reason):
    done = whowaits(*arguments)
    assert done.returncode == 2 and reason in done.stderr


def test_a_condition_on_nothing_is_not_decided(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    assert whowaits("--fail-if", "stall > 20", script).returncode == 4


def test_an_interrupt_ends_with_what_is_known(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "whowaits", "--python", sys.executable, str(script)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout and process.stdout.readline() == "begun\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and "it was interrupted" in shown


def make_interpreter(folder):
    path = folder / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_the_interpreter_is_the_users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    on_path = make_interpreter(tmp_path / "system")
    monkeypatch.setenv("PATH", str(Path(on_path).parent))
    monkeypatch.setattr("whowaits.cli.TRAINING_LIBRARIES", ())
    assert find_interpreter() == on_path
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "system"))  # as `uvx` makes it
    assert find_interpreter() == sys.executable
    local = make_interpreter(tmp_path / ".venv")
    assert find_interpreter() == local
    of_conda = make_interpreter(tmp_path / "conda")
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    for environment, interpreter in (("base", local), ("own", of_conda)):
        monkeypatch.setenv("CONDA_DEFAULT_ENV", environment)
        assert find_interpreter() == interpreter
    active = make_interpreter(tmp_path / "active")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    assert find_interpreter() == active
    assert find_interpreter(on_path) == on_path
    assert find_interpreter("/nowhere/python") is None


def find_interpreters():
    """One of each version from 3.9 on that this machine has."""
    found = [shutil.which(f"python3.{minor}") for minor in range(9, 14)]
    works = [
        each
        for each in found
        if each and not subprocess.call([each, "-c", ""], stderr=subprocess.DEVNULL)
    ]
    return [sys.executable, *works]


def test_an_older_python_is_refused():
    start = str(SOURCES / "whowaits" / "start.py")
    code = (
        f"import runpy, sys; sys.version_info = (3, 8); runpy.run_path({start!r}, {{}}, '__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.endswith("is Python 3.8, and 3.9 is the least\n")


COMPILE = "import sys\nfor name in sys.argv[1:]: compile(open(name).read(), name, 'exec')"


@pytest.mark.parametrize("interpreter", find_interpreters())
def test_every_python_from_3_9_on_runs_it(tmp_path, interpreter):
    script = tmp_path / "train.py"
    script.write_text("print('ran')\n")
    done = subprocess.run(
        [interpreter, "-m", "whowaits", "--python", interpreter, str(script)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )  # fmt: skip
    assert done.stdout.startswith(f"ran\n{script}: undecided\n"), done
    sources = [str(path) for path in SOURCES.rglob("*.py")]
    subprocess.run([interpreter, "-c", COMPILE, *sources], check=True)


def test_what_others_take_of_the_cores_is_counted_and_named():
    others = machine.OtherPrograms()
    own = machine.children_cpu_s()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline = time.perf_counter() + 30
        while machine.children_cpu_s() - own < 0.1:  # children count as ours
            assert time.perf_counter() < deadline
            time.sleep(0.1)
        assert not machine.wait_until_idle(0.3)
    finally:
        busy.kill()
        busy.wait()
    share, who = others.read()
    assert 0 <= share <= 100 and who
    assert (machine.memory_left_bytes() or 1) > 0


def write_proc(folder, *, busy, own, ended, child=None, other=0):
    """What /proc says [ticks]: of each core, this process, a child, and another process."""
    folder.mkdir(exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    (folder / "stat").write_text("".join(f"cpu{core} {busy} 0 0 9 0 0 0 0\n" for core in cores))
    processes = {os.getpid(): (1, own, ended), 999_998: (1, other, 0)}
    if child is not None:
        processes[999_999] = (os.getpid(), child, 0)
    shutil.rmtree(folder / "999999", ignore_errors=True)
    for pid, (parent, ticks, ended_ticks) in processes.items():
        (folder / str(pid)).mkdir(exist_ok=True)
        fields = f"S {parent} 0 0 0 0 0 0 0 0 0 {ticks} 0 {ended_ticks} 0"
        (folder / str(pid) / "stat").write_text(f"{pid} (a program) {fields}\n")
    return len(cores)


@pytest.mark.parametrize(("others_ticks", "share"), [(0, 0.0), (100, 50.0)])
def test_what_ended_workers_took_is_no_other_programs(tmp_path, monkeypatch, others_ticks, share):
    monkeypatch.setattr(machine, "PROC", tmp_path)
    monkeypatch.setattr(machine, "_ticks", lambda: 100)
    monkeypatch.setattr(machine.time, "perf_counter", iter([0.0, 2.0]).__next__)
    cores = write_proc(tmp_path, busy=1000, own=50, ended=7, child=300)
    others = machine.OtherPrograms()
    mine = 60 + 90  # the child has taken 90 more, and has ended
    busy = 1000 + mine // cores + others_ticks
    write_proc(tmp_path, busy=busy, own=110, ended=7 + 390, other=others_ticks * cores)
    assert others.read()[0] == pytest.approx(share, abs=1)


MEMORY_GROUPS = {
    "version 2": ("0::/a/b\n", "", ("memory.max", "memory.current", "inactive_file 300")),
    "version 1": (
        "5:cpu,cpuacct:/a/b\n4:memory:/a/b\n",
        "memory",
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file 300"),
    ),
}


@pytest.mark.parametrize("version", MEMORY_GROUPS)
@pytest.mark.parametrize("group", ["a/b", "a", ""])
def test_memory_is_limited_by_every_control_group_but_for_cached_files(
    tmp_path, monkeypatch, version, group
):
    listed, root, (limit, usage, statistics) = MEMORY_GROUPS[version]
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(listed)
    folder = tmp_path / "cgroup" / root / group
    folder.mkdir(parents=True)
    files = {limit: "1000", usage: "900", "memory.stat": f"anon 600\n{statistics}\n"}
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(machine, "PROC", tmp_path)
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "cgroup")
    assert machine.memory_left_bytes() == 400


def test_reading_of_many_processes_is_no_work_of_the_input(monkeypatch):
    """A machine of many cores has a thousand processes of its kernel alone."""
    read = machine._processes

    def read_many():
        end = time.process_time() + 0.03
        while time.process_time() < end:
            read()
        return read()

    monkeypatch.setattr(machine, "_processes", read_many)
    assert machine.wait_until_idle(5.0)
