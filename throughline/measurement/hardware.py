"""Describes the machine, and measures the CPU, memory, disk and GPUs that a process uses."""

from __future__ import annotations

import platform
import resource
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pynvml

from throughline.measurement.gpus import visible_gpus
from throughline.measurement.other_processes import read_times
from throughline.results.base import Usage
from throughline.shared.limits import usable_cores
from throughline.shared.progress import echo_problem

SAMPLE_EVERY_S = 0.2
# Errors that mean that a device never reports the metric.
NOT_MEASURED = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
)


def read_cpu_s() -> dict[int, float]:
    """Return the CPU time [s] of this process and its living descendants, by process id."""
    process = psutil.Process()
    processes = (process, *process.children(recursive=True))
    return {one.pid: sum(times[:2]) for one in processes if (times := read_times(one))}


class UsageMonitor:
    """Measures this process and samples `gpus`, NVML handles, in a thread; a context manager.

    Times and GPUs are measured between `resume()` and `pause()`, so not during validation.
    `cpu_s` returns CPU time [s] by process id. The usage is in `measured` after the block.
    """

    measured: Usage

    def __init__(
        self,
        gpus: Sequence[Any],
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_s: Callable[[], Mapping[int, float]] = read_cpu_s,
    ) -> None:
        self._clock, self._read_cpu_s = clock, cpu_s
        self._gpus, self._samples = gpus, list[dict[str, float]]()
        self._failures: list[str] = []
        self._running, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True, name="usage-monitor")
        self._wall_s = self._cpu_s = self._since = 0.0
        self._cpu: Mapping[int, float] = {}

    def __enter__(self) -> UsageMonitor:
        self._process = psutil.Process()
        self._read = self._process.io_counters().read_bytes  # from storage, not the page cache
        if self._gpus:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()
        self._stop.set()
        if self._gpus:
            self._thread.join()
        if self._failures:
            failed = len(self._failures)
            echo_problem(
                f"{failed} of {failed + len(self._samples)} readings of the GPU failed (NVML:"
                f" {self._failures[-1]}); GPU metrics come from the others, if any"
            )
        utilization, memory, power = (
            sorted(sample[name] for sample in self._samples if name in sample)
            for name in ("utilization_pct", "memory_mb", "power_w")
        )
        cores_s = self._wall_s * usable_cores()
        self.measured = Usage(
            wall_s=self._wall_s,
            cpu_s=self._cpu_s,
            # It might exceed 100, because clock ticks are coarse.
            cpu_utilization_pct=min(100.0, 100 * self._cpu_s / cores_s) if cores_s else None,
            # Linux counts in KiB.
            rss_mb_max=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
            disk_read_mb=(self._process.io_counters().read_bytes - self._read) / 1e6,
            gpu_utilization_pct_mean=statistics.fmean(utilization) if utilization else None,
            gpu_utilization_pct_p10=utilization[len(utilization) // 10] if utilization else None,
            gpu_utilization_pct_p50=utilization[len(utilization) // 2] if utilization else None,
            gpu_memory_mb_max=max(memory) if memory else None,
            gpu_power_w_mean=statistics.fmean(power) if power else None,
        )

    @property
    def running(self) -> bool:
        return self._running.is_set()

    def resume(self) -> None:
        if not self.running:
            self._since, self._cpu = self._clock(), self._read_cpu_s()
            self._running.set()

    def pause(self) -> None:
        if self.running:
            self._running.clear()
            self._wall_s += self._clock() - self._since
            # A child that started meanwhile counts from its start; one that ended is not counted.
            now = self._read_cpu_s()
            self._cpu_s += sum(
                seconds - self._cpu.get(process, 0.0) for process, seconds in now.items()
            )

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_EVERY_S):
            if not self.running:
                continue
            try:
                sample = read_gpus(self._gpus)
            except pynvml.NVMLError as error:
                self._failures.append(str(error))
                continue
            if self.running:  # otherwise, a pause began during the reading
                self._samples.append(sample)


def describe_machine() -> dict[str, str | int | float | list[str]]:
    """Describe the machine and its software; `name_machine` tells which machines are comparable."""
    handles, _ = visible_gpus()
    return {
        "cpu": read_cpu_name(),
        "cores": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles],
        "driver": str(pynvml.nvmlSystemGetDriverVersion()) if handles else "none",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "tensorflow": version("tensorflow"),
        "keras": version("keras"),
        "host": platform.node(),
    }


def read_gpus(handles: Sequence[Any]) -> dict[str, float]:
    """Read the mean utilization of the GPUs [%], and the sums of used memory [MB] and power [W].

    Values that NVML does not support, such as a MIG slice's utilization, are left out. Raises
    NVMLError if NVML does not answer.
    """
    count = len(handles)
    asked: dict[str, tuple[Callable[[Any], Any], float]] = {
        "utilization_pct": (lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu, count),
        "memory_mb": (lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used, 1e6),
        "power_w": (pynvml.nvmlDeviceGetPowerUsage, 1000),
    }
    sample = {}
    for name, (ask, unit) in asked.items():
        try:
            sample[name] = sum(map(ask, handles)) / unit
        except pynvml.NVMLError as error:
            if error.value not in NOT_MEASURED:  # pyright: ignore[reportAttributeAccessIssue] - set when it is made
                raise
    return sample


def read_cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
