"""Which GPUs a process may use and does use, and their figures, with stand-ins for NVIDIA's own
libraries where there is no GPU.
"""

import json
import os
import resource
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from tests.support.project import ROOT, run_python
from tests.support.skips import need
from throughline.measurement.gpus import used_gpus
from throughline.measurement.hardware import UsageMonitor, read_cpu_s

ASK = """
import json, time
import pynvml
from throughline.measurement.gpus import used_gpus, visible_gpus
from throughline.measurement.hardware import UsageMonitor, describe_machine
handles, reason = visible_gpus()
used = used_gpus({"/job:localhost/replica:0/task:0/device:GPU:0", "/device:CPU:0"})
with UsageMonitor(used) as monitor:
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
    folder = tmp_path_factory.mktemp("nvidia")
    for part in ("both", "nvml"):
        (folder / part).mkdir()
        source = ROOT / "tests" / "measurement" / "nvidia.c"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-w", "-o", folder / part / "libnvidia-ml.so.1", source],
            check=True,
        )
    shutil.copy(folder / "both" / "libnvidia-ml.so.1", folder / "both" / "libcuda.so.1")
    return folder


def ask(folder, **environment):
    """What a process finds, and what it printed before."""
    done = run_python(ASK, without=("CUDA_",), LD_LIBRARY_PATH=str(folder), **environment)
    *caught, answer = done.stdout.splitlines()
    return json.loads(answer), caught


# What CUDA shows (the fastest first, by index, beginning of a UUID or slice, as it decides itself),
# then NVML's names, and utilization, memory and power of the first, which trains; of a slice NVML
# does not measure all.
SLICE = "MIG-5e6f7a8b-d72c-4106-c12f-20bd9faed9f6"
CUDA = [
    ({"FAKE_CUDA": "201"}, ["GPU 2", "GPU 0", "GPU 1"], (96, 3, 50)),
    ({"FAKE_CUDA": "0", "CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, ["GPU 0"], (4, 1, 50)),
    ({"FAKE_CUDA": "1", "CUDA_VISIBLE_DEVICES": "1"}, ["GPU 1"], (6, 2, 50)),
    ({"FAKE_CUDA": "m", "CUDA_VISIBLE_DEVICES": SLICE}, ["GPU 3"], (None, 4, None)),
    ({"FAKE_CUDA": "", "CUDA_VISIBLE_DEVICES": ""}, [], (None, None, None)),
]
FIGURES = ("gpu_utilization_pct_mean", "gpu_memory_mb_max", "gpu_power_w_mean")


@pytest.mark.slow
@pytest.mark.parametrize(("environment", "names", "figures"), CUDA)
def test_the_gpus_are_those_that_cuda_shows_in_its_order(libraries, environment, names, figures):
    answer, caught = ask(libraries / "both", **environment)
    assert answer["gpus"] == names and answer["used"] == names[:1]
    assert (answer["reason"] is None) == bool(names)
    assert tuple(answer[figure] for figure in FIGURES) == figures and not caught


@pytest.mark.slow
def test_without_cudas_driver_there_is_no_gpu_and_the_reason_is_given(libraries):
    answer, _ = ask(libraries / "nvml")
    assert answer["gpus"] == [] and "CUDA's driver, libcuda.so.1, is missing" in answer["reason"]


@pytest.mark.slow
def test_readings_that_fail_are_reported_and_the_others_count(libraries):
    answer, caught = ask(libraries / "both", FAKE_CUDA="2", FAKE_NVML_LOST_AFTER="1")
    assert answer["gpu_utilization_pct_mean"] == 96
    assert len(caught) == 1 and "readings of the GPU failed (NVML: GPU is lost)" in caught[0]


def test_without_a_gpu_nothing_is_used():
    assert used_gpus({"/job:localhost/replica:0/task:0/device:CPU:0"}) == []


class Machine:
    """A process and its children in virtual time: what they have computed, by their ids [s]."""

    def __init__(self):
        self.now_s, self.cpu_s = 0.0, {1: 5.0}

    def work(self, seconds, process=1):
        self.now_s += seconds
        self.cpu_s = {**self.cpu_s, process: self.cpu_s.get(process, 0.0) + seconds}


def test_what_happens_in_a_pause_is_not_measured_and_the_work_of_child_processes_counts():
    machine = Machine()
    with UsageMonitor(
        [], paused=True, clock=lambda: machine.now_s, cpu_s=lambda: machine.cpu_s
    ) as monitor:
        machine.work(3.0)
        monitor.resume()
        machine.work(1.0)
        machine.work(2.0, process=2)
        monitor.pause()
        machine.work(3.0)
    assert (monitor.measured.cpu_s, monitor.measured.wall_s) == (3.0, 3.0)


@pytest.mark.integration
def test_children_that_live_are_among_those_whose_work_counts():
    with subprocess.Popen(["sleep", "600"]) as child:
        assert {os.getpid(), child.pid} <= read_cpu_s().keys()
        child.kill()


def test_memory_is_in_megabytes_of_a_million_bytes(monkeypatch):
    with UsageMonitor([]) as monitor:
        # Linux counts in KiB.
        monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=1_000_000))
    assert monitor.measured.rss_mb_max == 1024.0
