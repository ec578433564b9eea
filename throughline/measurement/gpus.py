"""The NVIDIA GPUs that this process may use, as NVML handles in CUDA's order.

CUDA puts the fastest GPU first unless CUDA_DEVICE_ORDER=PCI_BUS_ID, NVML follows the bus, and
CUDA_VISIBLE_DEVICES may name indices, prefixes of UUIDs or MIG slices. So the CUDA driver lists the
devices, and NVML is asked for those UUIDs. This creates no context and takes no GPU memory.
"""

import ctypes
import os
import re
from collections.abc import Iterable
from functools import cache
from typing import Any
from uuid import UUID

import pynvml

NO_GPU = "no NVIDIA GPU is visible ({}); GPU metrics are absent, not zero"
_CUDA_NO_DEVICE = 100  # as a status; 0 is success
_UUID_BYTES = 16


@cache
def visible_gpus() -> tuple[list[Any], str | None]:
    """Return NVML handles of the GPUs in CUDA's order, and the reason if there are none; cached."""
    try:
        pynvml.nvmlInit()
        uuids = cuda_uuids()
        if uuids is None:
            return [], NO_GPU.format("CUDA's driver, libcuda.so.1, is missing or does not answer")
        handles = [_handle(uuid) for uuid in uuids]
    except pynvml.NVMLError as error:
        return [], NO_GPU.format(f"NVML: {error}")
    if handles:
        return handles, None
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    reason = "there is none" if chosen is None else f"CUDA_VISIBLE_DEVICES={chosen} selects none"
    return [], NO_GPU.format(reason)


def used_gpus(devices: Iterable[str]) -> list[Any]:
    """Return NVML handles of the GPUs that TensorFlow's `devices` (…/device:GPU:0) name."""
    handles, _ = visible_gpus()
    numbers = {int(number) for device in devices for number in re.findall(r"GPU:(\d+)$", device)}
    return [handles[number] for number in sorted(numbers) if number < len(handles)]


def cuda_uuids() -> list[str] | None:
    """Return the UUIDs of CUDA's devices, without GPU- or MIG-; None if CUDA does not answer."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    status = cuda.cuInit(0)
    if status == _CUDA_NO_DEVICE:
        return []
    count = ctypes.c_int()
    if status or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return None
    # The v2 function tells a MIG slice from its GPU.
    uuid_of = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    uuids = []
    for ordinal in range(count.value):
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * _UUID_BYTES)()
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or uuid_of(raw, device):
            return None
        uuids.append(str(UUID(bytes=bytes(raw))))
    return uuids


def _handle(uuid: str) -> Any:
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
