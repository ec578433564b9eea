"""What could not be sent is kept in its order, with copies of its files, until it has been sent."""

from __future__ import annotations

from throughline.tracking.experiments import RunKey
from throughline.tracking.outbox import PendingRun, enqueue, list_pending, remove


def unsent(pipeline: str, *calls) -> PendingRun:
    run_key = RunKey(dataset="photos", pipeline=pipeline, data_digest="d", sketch=["1f", "a0"])
    return PendingRun(run_key=run_key, run_id=None, status="FINISHED", tags={}, calls=calls)


def test_runs_come_back_value_by_value_the_oldest_first(tmp_path):
    runs = [unsent("naive", ["metric", "loss", 0.5, 3]), unsent("cached", ["tag", "a", "b"])]
    for run in runs:
        enqueue(tmp_path, run)
    assert [run for _, run in list_pending(tmp_path)] == [
        PendingRun(**{**vars(run), "calls": list(run.calls)}) for run in runs
    ]


def test_files_and_folders_are_copied_and_outlive_their_originals(tmp_path):
    worktree, outbox = tmp_path / "worktree", tmp_path / "outbox"
    (worktree / "profile").mkdir(parents=True)
    (worktree / "profile" / "trace.txt").write_text("trace")
    (worktree / "plan.json").write_text("plan")
    calls = (["artifact", str(worktree / "profile"), "x"], ["model", str(worktree / "plan.json")])
    enqueue(outbox, unsent("naive", *calls))
    for path in (worktree / "profile" / "trace.txt", worktree / "plan.json"):
        path.unlink()
    ((file, run),) = list_pending(outbox)
    (kind, folder), (_, plan) = ((call[0], call[1]) for call in run.calls)
    assert (kind, run.calls[0][2]) == ("artifact", "x")
    assert (outbox / folder / "trace.txt").read_text() == "trace"
    assert (outbox / plan).read_text() == "plan"
    remove(file)
    assert list(outbox.iterdir()) == [] and list(list_pending(outbox)) == []
