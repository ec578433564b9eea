"""The engine of a stage: threads or a Dask cluster do the same, item by item."""

import importlib
import os
import pickle
import secrets
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from distributed import Client, Event, Security

from tests.support.small_data import write_files
from throughline.shared import dask_engine, dask_task
from throughline.shared.dask_task import THREADS, Stage, check_worker, describe_program, run_task
from throughline.shared.engine import in_parallel, use_engine
from throughline.shared.errors import EngineFailed, InvalidParams, ObjectStoreFailed
from throughline.shared.failures import report_user_errors

GIVES_UP_S = 120


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    """Two workers of this machine."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("stage"))
    with use_engine(workers=2):
        yield
    os.chdir(before)


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


SQUARE, TWO = pickle.dumps(square), pickle.dumps(2)
MODULES = ("throughline.shared.files",)


@pytest.fixture
def in_a_worker(tmp_path, monkeypatch):
    """What a worker changes of its process ends with the test; reading versions takes long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(dask_task, "_find_versions", lambda _: {"numpy": "2"})
    monkeypatch.setattr(dask_task, "_VERSIONS", {})
    for name in THREADS:
        monkeypatch.setenv(name, "")


def end_after_the_second(number: int) -> int:
    """The first item ends only when the second one has been done."""
    if number == 0:
        assert Event("second").wait(GIVES_UP_S)
    if number == 1:
        Event("second").set()
    return number


def refuse(number: int, *, at: int) -> int:
    if number == at:
        raise InvalidParams([f"no {number}", "and no other"])
    return number


def end_process(folder: Path, number: int) -> int:
    if number == 1:
        with (folder / "ended").open("a") as file:
            file.write("x")
        os._exit(1)
    return number


@pytest.mark.slow
def test_workers_give_the_results_in_the_order_of_the_items(two_workers):
    values = list(in_parallel(square, range(20), workers=1))
    assert [value for value, _ in values] == [number * number for number in range(20)]
    processes = {process for _, process in values}
    assert len(processes) == 2 and os.getpid() not in processes
    assert list(in_parallel(end_after_the_second, range(6), workers=1)) == [*range(6)]


@pytest.mark.slow
def test_few_items_are_outstanding_however_many_there_are(two_workers):
    """At the client, which holds no more than what it has sent and not taken back."""
    held = []

    def items():
        for number in range(30):
            held.append(len(Client.current().futures))
            yield number

    assert len(list(in_parallel(square, items(), workers=1))) == 30
    assert max(held) + 1 == 2 * dask_engine.PER_THREAD == 4, "with the one that is taken"


@pytest.mark.integration
def test_nobody_else_can_use_the_workers_of_a_stage(two_workers):
    address = Client.current().scheduler.address
    assert address.startswith("tls://")
    with pytest.raises(OSError, match="certificate does not match"):
        Client(address, timeout=GIVES_UP_S, security=Security.temporary(), set_as_default=False)
    with pytest.raises(OSError):
        Client(address.replace("tls:", "tcp:"), timeout=5, set_as_default=False)


@pytest.mark.slow
def test_what_a_function_raises_arrives_as_it_is(two_workers):
    with pytest.raises(InvalidParams) as caught:
        list(in_parallel(partial(refuse, at=3), range(9), workers=1))
    assert caught.value.problems == ("no 3", "and no other")


@pytest.mark.slow
def test_an_item_that_ends_its_workers_is_named_after_three(two_workers, tmp_path):
    with pytest.raises(EngineFailed, match="engine: 1 has ended 3 workers"):
        list(in_parallel(partial(end_process, tmp_path), range(3), workers=1))
    assert (tmp_path / "ended").read_text() == "xxx"
    # The next test is to start no process: the last worker that ended is replaced before it.
    Client.current().wait_for_workers(2, timeout=GIVES_UP_S)


def stage(tmp_path, **changes) -> Stage:
    """A stage whose workers are to have the modules, with the program as it is now."""
    (tmp_path / "token").write_text("secret")
    known = {"root": str(tmp_path), "token": tmp_path / "token", "text": "secret", "modules": ()}
    known |= changes
    return Stage(**{"program": describe_program(known["modules"]), **known})


def test_a_worker_that_sees_other_files_or_another_program_refuses(in_a_worker, tmp_path):
    for changes in ({"token": tmp_path / "elsewhere"}, {"text": "another"}):
        with pytest.raises(EngineFailed, match="does not see the files in"):
            run_task(stage(tmp_path, **changes), SQUARE, TWO)
    with pytest.raises(EngineFailed, match="has another program than the stage"):
        run_task(stage(tmp_path, modules=MODULES, program="old"), SQUARE, TWO)
    value, _ = run_task(stage(tmp_path, modules=MODULES), SQUARE, TWO)
    assert value == 4
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "1", "other cores are for other workers"


def refuse_to_read(number: int) -> None:
    raise ObjectStoreFailed(f"s3://box/{number}: no permission (HTTP 403)")


def test_what_a_store_says_to_a_worker_names_its_machine(in_a_worker, tmp_path):
    with pytest.raises(ObjectStoreFailed) as refused:
        run_task(stage(tmp_path), pickle.dumps(refuse_to_read), TWO)
    said = "s3://box/2: no permission (HTTP 403) (reported by a Dask worker at"
    assert str(refused.value) == f"{said} {os.uname().nodename})"


def test_a_worker_whose_program_has_changed_since_it_was_loaded_refuses(in_a_worker, tmp_path):
    """Whatever the clocks of the two machines say."""
    module = tmp_path / "own_square.py"
    module.write_text("def own(number):\n    return number\n")

    def call() -> int:
        known = stage(tmp_path, text=secrets.token_hex(4), modules=("own_square",))
        known.token.write_text(known.text)
        return run_task(known, function, TWO)

    function = pickle.dumps(importlib.import_module("own_square").own)
    assert call() == 2
    ahead = time.time() + 3600
    os.utime(module, (ahead, ahead))
    assert call() == 2, "the same text"
    module.write_text("def own(number):\n    return -number\n")
    os.utime(module, (0, 0))
    with pytest.raises(EngineFailed, match=r"has started before own_square was changed"):
        call()
    del sys.modules["own_square"]


def test_a_worker_that_has_anothers_module_of_a_name_refuses(in_a_worker, tmp_path, monkeypatch):
    write_files(tmp_path, {"their_ops.py": "VALUE = 1\n", "other/their_ops.py": "VALUE = 2\n"})
    importlib.import_module("their_ops")
    monkeypatch.chdir(tmp_path / "other")
    known = stage(tmp_path, root=str(tmp_path / "other"), modules=("their_ops",))
    with pytest.raises(EngineFailed, match="has another module of that name"):
        run_task(known, SQUARE, TWO)
    del sys.modules["their_ops"]


def test_a_library_that_was_updated_after_a_start_is_named(in_a_worker, tmp_path, monkeypatch):
    known = stage(tmp_path, modules=MODULES)
    check_worker(known)
    check_worker.cache_clear()  # it is of another stage, whose environment is the same
    monkeypatch.setitem(dask_task._VERSIONS, "numpy", "0.1")
    with pytest.raises(EngineFailed, match=r"before numpy was changed or updated, .* restart"):
        check_worker(known)


def test_an_engine_that_is_not_installed_says_how_to_get_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "throughline.shared.dask_engine", raising=False)
    monkeypatch.setitem(sys.modules, "distributed", None)
    refused = pytest.raises(EngineFailed, match="distributed is not installed; `pip install")
    with refused, use_engine(workers=1):
        raise AssertionError


@pytest.mark.integration
def test_an_address_where_nobody_answers_is_an_error(tmp_path, monkeypatch, capsys, absent_server):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dask_engine, "ANSWER_S", 1.0)
    address = absent_server.replace("http", "tcp")
    with pytest.raises(SystemExit), report_user_errors(), use_engine(address=address):
        raise AssertionError
    said = capsys.readouterr().err
    assert f"no Dask scheduler answers at {address} within 1 s" in said
    assert "Traceback" not in said
