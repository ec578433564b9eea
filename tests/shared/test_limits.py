"""Limits of memory and processes, and how errors are shown."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType

import numpy as np
import psutil
import pytest
import tensorflow as tf

from tests.support.project import run_python
from tests.support.skips import make_memory_cgroup, need
from tests.support.small_data import write_files
from throughline.shared.failures import describe_failure
from throughline.shared.limits import available_memory, usable_cores

pytestmark = pytest.mark.integration

MIB = 1 << 20


@pytest.fixture(params=["v1", "v2"])
def lay_out(request, tmp_path) -> Callable[..., Path]:
    """Writes what a process in cgroups with these limits [MiB] and quotas of CPU time [cores] finds
    in /proc and in the mounted hierarchy; each group has taken 60 MiB, half of them pages of files.
    """
    first = request.param == "v1"
    v1, v2 = ("total_", "limit_in_bytes", "usage_in_bytes"), ("", "max", "current")
    total, limit, usage = v1 if first else v2
    taken = {"anon": 30, "active_file": 20, "inactive_file": 10}

    def lay_out(limits, *, group: str, root: str = "/", cores=MappingProxyType({})) -> Path:
        mount = tmp_path / "sys fs"
        for name, most in limits.items():
            most_bytes = most * MIB if most is not None else 2**63 - 4096 if first else "max"
            quota = int(cores[name] * 1e5) if name in cores else -1 if first else "max"
            v1 = {"cpu.cfs_quota_us": f"{quota}\n", "cpu.cfs_period_us": "100000\n"}
            of_memory = {
                f"memory.{limit}": f"{most_bytes}\n",
                f"memory.{usage}": f"{60 * MIB}\n",
                "memory.stat": "".join(f"{total}{of} {size * MIB}\n" for of, size in taken.items()),
            }
            of_cores = v1 if first else {"cpu.max": f"{quota} 100000\n"}
            write_files(mount / name, of_memory | of_cores)
        listed = f"4:memory:{group}\n3:cpu,cpuacct:{group}\n0::/\n" if first else f"0::{group}\n"
        kind = "cgroup none rw,memory,cpu,cpuacct" if first else "cgroup2 none rw"
        shown = str(mount).replace(" ", "\\040")
        others = b"24 1 8:2 / /\xff rw - ext4 /dev/sda2 rw\n39 31 0:36 / /p rw - cgroup none pids\n"
        own = os.fsencode(f"35 31 0:32 {root} {shown} rw,relatime shared:9 - {kind}\n")
        cgroups = f"8:pids:/elsewhere\n{listed}"
        return write_files(tmp_path, {"cgroup": cgroups, "mountinfo": others + own})

    return lay_out


@pytest.mark.parametrize(
    ("limits", "group", "root", "left"),
    [
        ({"a": 100}, "/a", "/", 70),  # pages of files can be had
        ({"a": 50, "a/b": 100, "a/b/c": None}, "/a/b/c", "/", 20),  # the tightest counts
        ({"a": 20}, "/a", "/", 0),
        ({".": 100}, "/docker/1f", "/docker/1f", 70),  # a container sees its own as the root
        ({"a": None}, "/a", "/", 123),  # the machine decides
    ],
)
def test_a_cgroup_leaves_its_least_limit_less_what_is_taken(
    lay_out, monkeypatch, limits, group, root, left
):
    memory = psutil.virtual_memory()._replace(available=123 * MIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert available_memory(lay_out(limits, group=group, root=root)) == left * MIB
    assert available_memory(Path("/nowhere")) == 123 * MIB


def test_the_least_quota_of_cpu_time_limits_the_cores_and_is_rounded_up(lay_out, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    limits, cores = {"a": None, "a/b": None, "a/b/c": None}, {"a": 6, "a/b": 2.5}
    assert usable_cores(lay_out(limits, group="/a/b/c", cores=cores)) == 3
    for name, unlimited in (("d", {}), ("e", {"e": 1000})):
        assert usable_cores(lay_out({name: None}, group=f"/{name}", cores=unlimited)) == 8
    assert usable_cores(Path("/nowhere")) == 8


@pytest.fixture
def memory_limit() -> Iterator[Path]:
    """The file of the limit of a real cgroup."""
    need("cgroup")
    limit = make_memory_cgroup()
    assert limit is not None
    yield limit
    limit.parent.rmdir()


def test_a_real_limit_counts_and_what_is_allocated_below_it(memory_limit, tmp_path):
    (tmp_path / "read").write_bytes(bytes(100 * MIB))
    done = run_python(f"""
import os
open({str(memory_limit.with_name("cgroup.procs"))!r}, "w").write(str(os.getpid()))
from throughline.shared.limits import available_memory
open({str(memory_limit)!r}, "w").write(str(400 << 20))
seen = [available_memory()]
for _ in range(3):
    open({str(tmp_path / "read")!r}, "rb").read()
seen.append(available_memory())
block = bytearray(b"1" * (100 << 20))
seen.append(available_memory())
print(*(size >> 20 for size in seen))
""")
    empty, after_reading, after_allocating = map(int, done.stdout.split())
    assert 300 < empty <= 400
    assert after_reading == pytest.approx(empty, abs=20)
    assert after_allocating == pytest.approx(empty - 100, abs=30)


# As a GPU says it.
ON_A_GPU = """Graph execution error:

OOM when allocating tensor with shape[128,112,112,96] and type half on \
/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc
\t [[{{node mobilenetv2/block_1_expand/convolution}}]]
 [Op:__inference_run_24191]"""
IN_XLA = "Out of memory while trying to allocate 98765432100 bytes. [Op:__inference_run_24191]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ON_A_GPU, "GPU:0 has no memory left for a tensor of shape[128,112,112,96] and type half"),
        (ON_A_GPU, "of mobilenetv2/block_1_expand/convolution. Lower batch_size, "),
        (ON_A_GPU, "end other programs that use this GPU"),
        (ON_A_GPU.replace("GPU:0", "CPU:0"), "CPU:0 has no memory left"),
        (IN_XLA, "the device has no memory left for 98,765,432,100 bytes. Lower batch_size"),
    ],
)
def test_memory_that_a_device_lacks_is_no_bug(text, said):
    failure = describe_failure(tf.errors.ResourceExhaustedError(None, None, text))
    assert not failure.traceback
    assert str(failure).startswith("OutOfMemory: ") and said in failure.message
    assert ("GPU" in failure.message) == ("CPU:0" not in text)
    other = tf.errors.ResourceExhaustedError(None, None, "too many open streams")
    assert describe_failure(other).traceback


def test_an_array_that_has_no_room_is_no_bug():
    with pytest.raises(MemoryError) as raised:
        np.ones(1 << 46)
    failure = describe_failure(raised.value)
    assert failure.kind == "OutOfMemory" and "512. TiB" in failure.message
    assert not failure.traceback


def raise_lines(_):
    raise RuntimeError("one: of these\ntwo")


def raise_within_numpy(_):
    np.zeros(3).reshape(2)


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (raise_lines, "RuntimeError", "one: of these\ntwo"),
        (raise_within_numpy, "ValueError", "cannot reshape array of size 3 into shape (2,)"),
    ],
)
@pytest.mark.parametrize("call", [tf.numpy_function, tf.py_function])
def test_what_own_code_raises_in_tensorflow_is_said_with_its_line(call, function, kind, words):
    batches = tf.data.Dataset.range(3).map(lambda x: call(function, [x], tf.int64))
    with pytest.raises(tf.errors.OpError) as raised:
        list(batches)
    failure = describe_failure(raised.value)
    place = f"{__file__}:{function.__code__.co_firstlineno + 1}"
    assert (failure.kind, failure.message) == (kind, f"{words}: {place}")
    assert failure.traceback.endswith(f"\n{failure}\n")
    assert describe_failure(raised.value) == failure
