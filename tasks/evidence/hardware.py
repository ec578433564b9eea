"""The machine: its fingerprint, and what a measured process uses of it (CPU, memory, disk, GPU through NVML)."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import threading
import time
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import TracebackType

import psutil
import pynvml

SAMPLE_EVERY_S = 0.2
NO_GPU = "no NVIDIA GPU is visible (NVML: {}); GPU metrics are absent, not zero"


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What happened between entering and leaving a `Sampler`. GPU fields are None without a GPU."""

    wall_s: float
    cpu_s: float
    rss_mb_max: float
    disk_read_mb: float
    gpu_utilization_pct_mean: float | None
    gpu_utilization_pct_p10: float | None
    gpu_utilization_pct_p50: float | None
    gpu_memory_mb_max: float | None
    gpu_power_w_mean: float | None


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One reading of all visible GPUs: mean utilisation [%], memory in use [MB], power [W]."""

    utilization_pct: float
    memory_mb: float
    power_w: float | None


class Sampler:
    """Context manager that samples the process and the GPUs in a thread; read `measured` after leaving it."""

    def __init__(self) -> None:
        self._usage: Usage | None = None
        self._samples: list[GpuSample] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Sampler:
        handles, _ = visible_gpus()
        self._process = psutil.Process()
        self._began, self._cpu, self._read = time.perf_counter(), _cpu_seconds(self._process), _bytes_read(self._process)
        if handles:
            self._thread = threading.Thread(target=self._sample, args=(handles,), daemon=True, name="gpu-sampler")
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
        utilization = sorted(sample.utilization_pct for sample in self._samples)
        power = [sample.power_w for sample in self._samples if sample.power_w is not None]
        self._usage = Usage(
            wall_s=time.perf_counter() - self._began,
            cpu_s=_cpu_seconds(self._process) - self._cpu,
            rss_mb_max=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            disk_read_mb=(_bytes_read(self._process) - self._read) / 1e6,
            gpu_utilization_pct_mean=statistics.fmean(utilization) if utilization else None,
            gpu_utilization_pct_p10=utilization[len(utilization) // 10] if utilization else None,
            gpu_utilization_pct_p50=utilization[len(utilization) // 2] if utilization else None,
            gpu_memory_mb_max=max(sample.memory_mb for sample in self._samples) if self._samples else None,
            gpu_power_w_mean=statistics.fmean(power) if power else None,
        )

    @property
    def measured(self) -> Usage:
        """What was used; known once the block is left."""
        if self._usage is None:
            raise RuntimeError("the sampler is still running")
        return self._usage

    def _sample(self, handles: list) -> None:
        while not self._stop.wait(SAMPLE_EVERY_S):
            self._samples.append(_read_gpus(handles))


@cache
def visible_gpus() -> tuple[list, str | None]:
    """NVML handles of the GPUs this process may use, or none and the reason. Initialises NVML once per process."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        return [], NO_GPU.format(error)
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        wanted = {part.strip() for part in chosen.split(",")}
        handles = [handle for index, handle in enumerate(handles) if wanted & {str(index), str(pynvml.nvmlDeviceGetUUID(handle))}]
    return handles, None if handles else NO_GPU.format("none visible")


def fingerprint() -> dict[str, str | int | float | list[str]]:
    """Describe the machine and the versions, so that numbers are only compared with their like."""
    handles, _ = visible_gpus()
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles],
        "driver": str(pynvml.nvmlSystemGetDriverVersion()) if handles else "none",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "tensorflow": version("tensorflow"),
        "keras": version("keras"),
        "host": platform.node(),
    }


def _read_gpus(handles: list) -> GpuSample:
    try:
        power = sum(float(pynvml.nvmlDeviceGetPowerUsage(handle)) for handle in handles) / 1000
    except pynvml.NVMLError:  # some virtual GPUs do not tell
        power = None
    return GpuSample(
        utilization_pct=statistics.fmean(float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in handles),
        memory_mb=sum(float(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles) / 1e6,
        power_w=power,
    )


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _bytes_read(process: psutil.Process) -> int:
    """Bytes fetched from storage; what the page cache served does not count."""
    return process.io_counters().read_bytes


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
