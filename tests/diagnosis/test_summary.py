"""What a profile comes to is said in words: of several processes each, and the slowest by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.made_up import made_up, write_made_up
from throughline.diagnosis.summary import print_summary
from throughline.results.profiling import (
    Breakdown,
    Diagnosis,
    ProcessProfile,
    ProfileResult,
    RoundTimes,
)

pytestmark = pytest.mark.integration


def said_of(hosts, tmp_path, capsys):
    for kind in (Breakdown, Diagnosis, RoundTimes):
        write_made_up(kind, tmp_path)
    processes = tuple(replace(made_up(ProcessProfile), host=host) for host in hosts)
    several = {"slowest": len(hosts) - 1, "exchange_ms": 2.5 if len(hosts) > 1 else None}
    result = replace(made_up(ProfileResult), stall_side="both", processes=processes, **several)
    print_summary("fast", result, tmp_path / "runs" / "fast")
    return capsys.readouterr().out


def test_the_slowest_process_and_what_a_step_exchanges_are_said(tmp_path, capsys):
    said = said_of(["a", "b"], tmp_path, capsys)
    assert "process 1 of 2, the slowest" in said
    assert "process 0 on a: its slices alone" in said and "process 1 on b: its slices" in said
    assert "takes 2.50 ms more than that of process 1 alone" in said


def test_of_the_only_process_nothing_is_said(tmp_path, capsys):
    assert "process" not in said_of(["a"], tmp_path, capsys)
