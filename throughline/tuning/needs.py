"""The needs of configurations, compared with the limits. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from throughline.shared.errors import InvalidBudget
from throughline.tuning.budgets import Limits


@dataclass(frozen=True, kw_only=True)
class Need:
    """The memory, disk and preparation time that a configuration needs.

    `kept_bytes` is the part of the memory that keeps splits, `written_bytes` is the part of the
    disk that is not written yet. `prepare_s` comes before the first epoch.
    """

    ram_bytes: float
    disk_bytes: float
    prepare_s: float
    kept_bytes: float = 0.0
    written_bytes: float = 0.0


def find_excess(needs: Mapping[str, Need], limits: Limits) -> dict[str, str]:
    """Return which configurations exceed the limits, and by what.

    Raises:
      InvalidBudget: If all of them do; says the least that is needed.
    """
    excess = {name: why for name, need in needs.items() if (why := _describe(need, limits))}
    if len(excess) == len(needs):
        least = Need(
            ram_bytes=min(need.ram_bytes for need in needs.values()),
            disk_bytes=min(need.disk_bytes for need in needs.values()),
            prepare_s=min(need.prepare_s for need in needs.values()),
        )
        raise InvalidBudget(
            "no configuration fits into the budgets. The least that one needs is"
            f" {format_bytes(least.ram_bytes)} of memory ({format_bytes(limits.ram_bytes)} are"
            f" allowed), {format_bytes(least.disk_bytes)} of disk"
            f" ({format_bytes(limits.disk_bytes)}) and {format_seconds(least.prepare_s)} of"
            f" preparation ({format_seconds(limits.prepare_s)}); raise --ram, --disk or --prepare"
        )
    return excess


def _describe(need: Need, limits: Limits) -> str:
    spent = (
        ("memory", need.ram_bytes, limits.ram_bytes, format_bytes),
        ("memory to keep splits in", need.kept_bytes, limits.kept_bytes, format_bytes),
        ("disk", need.disk_bytes, limits.disk_bytes, format_bytes),
        ("disk besides the snapshot", need.written_bytes, limits.free_bytes, format_bytes),
        ("preparation", need.prepare_s, limits.prepare_s, format_seconds),
    )
    return "; ".join(
        f"needs {shown(needed)} of {what}, {shown(allowed)} are allowed"
        for what, needed, allowed, shown in spent
        if needed > allowed
    )


def format_seconds(seconds: float) -> str:
    """Format a time for people: 0.8 s, 41 s, 12 min, 3.5 h; infinity is "any time"."""
    if seconds == float("inf"):
        return "any time"
    if seconds < 10:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    if seconds < 120:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004


def format_bytes(count: float) -> str:
    """Format bytes for people: 12 kiB, 38 MiB, 1.1 GiB."""
    mib = count / 2**20
    if mib < 1:
        return f"{count / 2**10:.0f} kiB"
    return f"{mib:.0f} MiB" if mib < 1000 else f"{mib / 1024:.1f} GiB"  # noqa: PLR2004
