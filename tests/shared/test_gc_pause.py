"""Python searches for garbage as usual but while commands import."""

from __future__ import annotations

from flows import COMMANDS
from tests.support.project import ROOT, run_python
from throughline.shared.fork_client import HEAVY_STAGES
from throughline.shared.gc_pause import USUAL_THRESHOLDS


def test_none_is_searched_for_while_a_stage_or_a_flow_imports_its_libraries():
    code = (
        "import gc, sys; usual = gc.get_threshold(); import tasks;"
        " print(gc.get_threshold() == usual);"
        " del sys.modules['tasks']; sys.argv[:2] = ['-m']; import tasks, flows;"
        " print(gc.get_threshold()[0]);"
        " from throughline.shared.gc_pause import collect_garbage_as_usual as usually; usually();"
        " print(gc.get_threshold() == usual, gc.get_freeze_count() > 1000)"
    )
    stage, flow, other, argument = (
        run_python(code, *module).stdout.split()
        for module in (
            ["tasks.train", "naive"],
            ["flows.comparison"],
            ["tasks.sync"],
            ["tasks.sync", "tasks.train"],
        )
    )
    assert stage == flow == ["True", "1000000", "True", "True"]
    assert other == argument == ["True", str(USUAL_THRESHOLDS[0]), "True", "True"]
    for name in HEAVY_STAGES:
        assert "stage_cli(" in (ROOT / "tasks" / f"{name}.py").read_text(), "it sets it back"
    for name in COMMANDS:
        assert "run_command(" in (ROOT / "flows" / f"{name}.py").read_text(), "it sets it back"
