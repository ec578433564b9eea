"""What a process uses of GPUs, with stand-ins for NVIDIA's own libraries, of cores and memory, and
what others take of the machine meanwhile.
"""

import json
import os
import resource
import subprocess
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from tests.support.project import ROOT, run_python
from tests.support.skips import need
from throughline.measurement import other_processes
from throughline.measurement.gpus import used_gpus
from throughline.measurement.hardware import UsageMonitor, read_cpu_s
from throughline.measurement.other_processes import CpuTimes, OtherProcesses
from throughline.shared.limits import usable_cores

ASK = """
import json, time
import pynvml
from throughline.measurement.gpus import used_gpus, visible_gpus
from throughline.measurement.hardware import UsageMonitor, describe_machine
handles, reason = visible_gpus()
used = used_gpus({"/job:localhost/replica:0/task:0/device:GPU:0", "/device:CPU:0"})
with UsageMonitor(used) as monitor:
    monitor.resume()
    while used and len(monitor._samples) + bool(monitor._failures) < 2:
        time.sleep(0.01)
names = [pynvml.nvmlDeviceGetName(handle) for handle in used]
known = {"gpus": describe_machine()["gpus"], "reason": reason, "used": names}
print(json.dumps({**known, **vars(monitor.measured)}))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Folders with the stand-ins: of both libraries, and of NVML alone."""
    need("compiler")
    folder, source = tmp_path_factory.mktemp("nvidia"), ROOT / "tests" / "measurement" / "nvidia.c"
    for name in ("both/libnvidia-ml.so.1", "both/libcuda.so.1", "nvml/libnvidia-ml.so.1"):
        (folder / name).parent.mkdir(exist_ok=True)
        command = ["cc", "-shared", "-fPIC", "-w", "-o", folder / name, source]
        subprocess.run(command, check=True)
    return folder


def ask(folder, **environment):
    """What a process finds, and what it printed before."""
    done = run_python(ASK, without=("CUDA_",), LD_LIBRARY_PATH=str(folder), **environment)
    *caught, answer = done.stdout.splitlines()
    return json.loads(answer), caught


@pytest.mark.slow
@pytest.mark.parametrize(
    # What CUDA shows (the fastest first, by index, beginning of a UUID or slice, as it decides
    # itself), then NVML's names, and utilization, memory and power of the first, which trains; of
    # a slice NVML does not measure all.
    ("shown", "visible", "names", "figures"),
    [
        ("201", None, ["GPU 2", "GPU 0", "GPU 1"], (96, 3, 50)),
        ("0", "GPU-8932f937", ["GPU 0"], (4, 1, 50)),
        ("1", "1", ["GPU 1"], (6, 2, 50)),
        ("m", "MIG-5e6f7a8b-d72c-4106-c12f-20bd9faed9f6", ["GPU 3"], (None, 4, None)),
        ("", "", [], (None, None, None)),
    ],
)
def test_the_gpus_are_those_that_cuda_shows_in_its_order(libraries, shown, visible, names, figures):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    answer, caught = ask(libraries / "both", FAKE_CUDA=shown, **environment)
    assert answer["gpus"] == names and answer["used"] == names[:1]
    assert (answer["reason"] is None) == bool(names) and not caught
    measured = ("gpu_utilization_pct_mean", "gpu_memory_mb_max", "gpu_power_w_mean")
    assert tuple(answer[figure] for figure in measured) == figures


@pytest.mark.slow
def test_a_driver_that_is_missing_and_readings_that_fail_are_reported(libraries):
    answer, _ = ask(libraries / "nvml")
    assert answer["gpus"] == [] and "CUDA's driver, libcuda.so.1, is missing" in answer["reason"]
    answer, caught = ask(libraries / "both", FAKE_CUDA="2", FAKE_NVML_LOST_AFTER="1")
    assert answer["gpu_utilization_pct_mean"] == 96, "the others count"
    assert len(caught) == 1 and "readings of the GPU failed (NVML: GPU is lost)" in caught[0]


def test_what_happens_in_a_pause_is_not_measured_and_the_work_of_child_processes_counts():
    done = Counter({1: 5.0})  # seconds that processes have computed, one after another

    with UsageMonitor([], cpu_s=lambda: dict(done), clock=done.total) as monitor:
        done[1] += 3.0
        monitor.resume()
        done.update({1: 1.0, 2: 2.0})
        monitor.pause()
        done[1] += 3.0
    assert (monitor.measured.cpu_s, monitor.measured.wall_s) == (3.0, 3.0)


def test_memory_is_in_megabytes_of_a_million_bytes_and_a_cpu_uses_no_gpu(monkeypatch):
    gpus = used_gpus({"/job:localhost/replica:0/task:0/device:CPU:0"})
    with UsageMonitor(gpus) as monitor:
        kib = SimpleNamespace(ru_maxrss=1_000_000)  # as Linux counts
        monkeypatch.setattr(resource, "getrusage", lambda _: kib)
    assert (gpus, monitor.measured.rss_mb_max) == ([], 1024.0)


CHILD, OTHER = 2**30, 1  # a number that no process has, and one that always has a name
NAMED = f"{psutil.Process(OTHER).name()} (process {OTHER})"


@pytest.mark.parametrize(
    ("idle_s", "took_s", "taken_pct", "idle_pct", "missed_pct", "busiest"),
    [
        (2.0, {"this": 1.0, "other": 5.0}, 62.5, 25.0, 37.5, NAMED),
        (0.0, {"this": 6.0, "child": 2.0}, 0.0, 0.0, 0.0, other_processes.OTHER_PROGRAMS),
        (0.0, {"this": 5.0, "other": 5.0}, 50.0, 0.0, 50.0, NAMED),
        (5.0, {"other": 5.0}, 50.0, 50.0, 0.0, NAMED),  # cores that nobody else has used
    ],
)
def test_a_process_that_is_not_ours_is_measured_and_named(
    monkeypatch, idle_s, took_s, taken_pct, idle_pct, missed_pct, busiest
):
    """After so many seconds of a process, its child and another one, on cores else idle."""
    monkeypatch.setattr(other_processes, "list_children", lambda pid: [CHILD])
    ids = {"this": os.getpid(), "child": CHILD, "other": OTHER}
    known = {"cores": usable_cores(), "group_s": 9.0, "by_process": Counter({OTHER: 5})}
    before = CpuTimes(idle_s=50.0, busy_s=70.0, **known)
    took = before.by_process + Counter({ids[name]: took_s[name] for name in took_s})
    busy_s = 70.0 + sum(took_s.values())
    after = replace(before, idle_s=50.0 + idle_s, busy_s=busy_s, by_process=took)
    with OtherProcesses(read=iter([before, after]).__next__) as others:
        pass
    found = (others.cpu_pct, others.idle_pct, others.missed_pct)
    assert found == pytest.approx((taken_pct, idle_pct, missed_pct))
    assert others.busiest == busiest


@pytest.mark.integration
def test_children_that_live_are_among_those_whose_work_counts_and_the_system_counts_every_process():
    with subprocess.Popen(["sleep", "600"]) as child:
        assert {os.getpid(), child.pid} <= read_cpu_s().keys()
        child.kill()
    found = other_processes.read_cpu_times()
    assert found.by_process[os.getpid()] > 0 and found.busy_s > 0
    assert found.cores == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("others_s", "own_s", "usable", "sharing_s", "shares"),
    [
        (20.0, 40.0, 1.0, 0.0, (25.0, 25.0)),
        (60.0, 20.0, 0.25, 0.0, (0.0, 0.0)),
        (60.0, 5.0, 0.25, 0.0, (0.0, 75.0)),
        (70.0, 10.0, 0.25, 0.0, (50.0, 0.0)),
        (10.0, 10.0, 0.25, 10.0, (50.0, 0.0)),  # of another program of the container
    ],
)
def test_a_quota_leaves_others_what_it_keeps_from_us(others_s, own_s, usable, sharing_s, shares):
    """Eight cores in ten seconds, of which a quota leaves two."""
    busy_s, more = others_s + own_s, {"usable": usable, "sharing_s": sharing_s}
    assert other_processes.share_of_cores(busy_s, 80.0 - busy_s, own_s, **more) == shares
