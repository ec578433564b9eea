"""The tf.data service as real processes: what each mode promises, and what a death costs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest
import tensorflow as tf

from tests.support.project import ROOT
from tests.support.stack import wait_for
from throughline.assembly.inputs import explain_read_errors
from throughline.pipelines.service import check_listens, run_local_service
from throughline.shared.errors import ServiceFailed
from throughline.shared.failures import FAILURE_FILE

distribute = tf.data.experimental.service.distribute
Policy = tf.data.experimental.service.ShardingPolicy
pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "throughline.pipelines.service"]
DISPATCHER = [*COMMAND, "dispatcher", "--workers", "1"]
LONG_S = 120  # for what ends at once, on a machine that has other work


def servers():
    """Processes of services that this process has started."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "throughline.pipelines.service" in child.cmdline()]


@pytest.fixture(scope="module")
def address():
    """Address of a service of two workers, of which nothing is left in the end."""
    with run_local_service(2) as started:
        yield started
    assert servers() == []


def find_server(role):
    """The process of a dispatcher, or of the first worker."""
    return next(server for server in servers() if role in server.cmdline())


def numbers(address, policy, *, files=6):
    """So many sources of 50 numbers each, in batches of 8 from the workers."""
    sources = tf.data.Dataset.range(files).interleave(
        lambda file: tf.data.Dataset.range(50 * file, 50 * (file + 1)), cycle_length=2
    )
    served = distribute(processing_mode=policy, service=address, compression=None)
    return sources.batch(8).apply(served)


@pytest.fixture
def nobody(absent_server):
    return absent_server.removeprefix("http://")


def start(*command, **more):
    """A process, such as a dispatcher that keeps no journal, and the first line that it prints."""
    process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT, **more)
    return process, process.stdout.readline().strip()


def end(*processes):
    for process in processes:
        process.kill()
        process.communicate()


def wait_for_tensorflow(process):
    maps = psutil.Process(process.pid).memory_maps
    wait_for(lambda: any("pywrap" in Path(each.path).name for each in maps()))


def test_a_worker_that_dies_in_mid_epoch_does_not_stop_the_training(address):
    """What it had in hand is made up from a second pass, so the epoch keeps its length."""
    batches = numbers(address, Policy.DYNAMIC, files=400).rebatch(8).repeat().take(2600)
    steps = 0
    for steps, batch in enumerate(batches.as_numpy_iterator(), 1):
        assert len(batch) <= 8
        if steps == 10:
            find_server("worker").kill()
    assert steps == 2600
    wait_for(lambda: len(servers()) == 3)


@pytest.mark.parametrize("policy", ["DYNAMIC", "FILE_OR_DATA"])
def test_a_dispatcher_that_dies_goes_on_from_its_journal(policy, address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    batches = numbers(address, getattr(Policy, policy), files=40)
    for killed in (True, False):  # and is there again
        seen = []
        for number, batch in enumerate(batches.as_numpy_iterator()):
            seen += batch.tolist()
            if killed and number == 10:
                find_server("dispatcher").kill()
        assert sorted(seen) == list(range(2000)), "every row once"
    wait_for(lambda: len(servers()) == 3)


def test_a_worker_that_still_waits_for_a_dispatcher_ends_with_its_parent(nobody):
    code = (
        "import time; from throughline.pipelines.service import _start\n"
        f"print(_start('worker', '--dispatcher', '{nobody}').pid, flush=True); time.sleep(600)"
    )
    parent, number = start(sys.executable, "-c", code)
    worker = psutil.Process(int(number))
    wait_for_tensorflow(worker)
    end(parent)
    assert not psutil.wait_procs([worker], timeout=LONG_S)[1]


@pytest.mark.parametrize("waits", [True, False])
def test_sigterm_ends_a_process_although_tensorflow_holds_its_thread(waits, nobody):
    """A handler of Python would be called once TensorFlow has returned."""
    command = [*COMMAND, "worker", "--dispatcher", nobody] if waits else DISPATCHER
    closed = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=closed, stdout=PIPE, cwd=ROOT) as process:
        if waits:
            wait_for_tensorflow(process)
        else:
            process.stdout.readline()
        process.terminate()
        assert process.wait(LONG_S) == signal.SIGTERM


def test_a_dispatcher_that_comes_back_without_its_journal_ends_the_training(stored):
    dispatcher, address = start(*DISPATCHER)
    worker, _ = start(*COMMAND, "worker", "--dispatcher", address)
    try:
        batches = iter(numbers(address, Policy.DYNAMIC, files=400))
        next(batches)
        end(dispatcher)
        dispatcher, _ = start(*DISPATCHER, "--port", address.rpartition(":")[2])
        refused = pytest.raises(ServiceFailed, match="has no journal")
        with refused, explain_read_errors(stored["arrays"]):
            for _ in batches:
                pass
    finally:
        end(dispatcher, worker)


def test_a_dispatcher_that_never_comes_back_ends_who_waits_for_it(tmp_path):
    dispatcher, address = start(*DISPATCHER)
    code = (
        "import sys, tensorflow as tf\n"
        "from throughline.pipelines.service import watch_service\n"
        "service = tf.data.experimental.service\n"
        "numbers = tf.data.Dataset.range(10).apply(service.distribute(\n"
        "    processing_mode=service.ShardingPolicy.DYNAMIC, service=sys.argv[1]))\n"
        "with watch_service(sys.argv[1], outage_s=0.1):\n"
        "    print('waits', flush=True)\n"  # for a worker, of which there is none
        "    next(iter(numbers))\n"
    )
    failure = tmp_path / "failure.json"
    env = {**os.environ, FAILURE_FILE: str(failure)}
    consumer, printed = start(sys.executable, "-c", code, address, env=env)
    assert printed == "waits"
    end(dispatcher)
    assert consumer.wait(LONG_S) == 2
    said = json.loads(failure.read_text())
    assert said["kind"] == "ServiceFailed"
    assert f"no tf.data service at {address}" in said["message"]
    assert "No answer for 0.1 s" in said["message"]


@pytest.mark.parametrize("form", ["grpc://{nobody}", "127.0.0.1", "grpc://127.0.0.1:port"])
def test_a_service_that_is_not_there_is_named_at_once(form, nobody):
    address = form.format(nobody=nobody)
    with pytest.raises(ServiceFailed, match=f"no tf.data service at {address}"):
        check_listens(address)
