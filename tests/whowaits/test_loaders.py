"""Changes of a PyTorch DataLoader: what they gain in the script's own loop, whether they keep its
examples, and the patch. With the real PyTorch, in an environment of its own.
"""

import json
import os
import subprocess

import pytest

from tests.support.project import ROOT
from tests.support.skips import TORCH, need
from whowaits.changes.advice import DRAWS, SAME, UNSHOWN

pytestmark = [pytest.mark.slow]

LOOP = """
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(10_000):
    for inputs, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
# As accelerate and trainers do: one batch is fetched ahead, and an iterator left before its end.
AHEAD = """
def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch
"""
COUNTED = AHEAD + LOOP.replace(
    "for inputs, labels in loader", "for _, (inputs, labels) in zip(range(30), ahead(loader))"
)
# An example waits, so that workers gain on any number of cores.
SLOW = """
import time, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

class Slow(Dataset):
    def __len__(self):
        return 960
    def __getitem__(self, index):
        time.sleep(0.002)
        return {example}, index % 10

class Stream(IterableDataset):
    def __iter__(self):
        for index in range(640):
            time.sleep(0.001)
            yield torch.full((64,), float(index)), index % 10

class Open(Slow):
    def __init__(self):
        self.file = open(__file__)

"""
FULL, DRAWN = "torch.full((64,), float(index))", "torch.rand(64)"


def whowaits(folder, loader, *options, example=FULL, loop=LOOP):
    """Run the command on a training on a loader; returns what it prints, and its exit code."""
    need("torch")
    text = SLOW.format(example=example) + f"loader = {loader}\n" + loop
    (folder / "train.py").write_text(text)
    done = subprocess.run(
        [TORCH, "-m", "whowaits", *options, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "whowaits" / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "something in whowaits failed" not in done.stderr, done.stderr
    return done


def report(folder, loader, **given):
    found = json.loads(whowaits(folder, loader, "--json", **given).stdout)
    return found, {each["text"].partition(": ")[2]: each for each in found["changes"]}


@pytest.mark.parametrize(("example", "meaning"), [(FULL, SAME), (DRAWN, DRAWS)], ids=[SAME, DRAWS])
def test_workers_gain_and_what_they_draw_is_said(tmp_path, example, meaning):
    loader = "DataLoader(Slow(), batch_size=32, shuffle=True)"
    _, changes = report(tmp_path, loader, example=example)
    best = changes["num_workers=2"]
    assert best["gain"] > 1.2 and best["meaning"] == meaning and best["where"] == "train.py:22"


def test_a_stream_that_workers_would_repeat_is_not_tried_with_several(tmp_path):
    found, changes = report(tmp_path, "DataLoader(Stream(), batch_size=32)")
    assert "num_workers=2" not in changes and changes["num_workers=1"]["meaning"] == SAME
    assert any("1280 examples in place of 640" in each for each in found["notes"])


def test_whole_batches_of_tensors_are_the_same(tmp_path):
    tensors = "TensorDataset(torch.rand(9600, 64), torch.arange(9600) % 10)"
    _, changes = report(tmp_path, f"DataLoader({tensors}, batch_size=128, shuffle=True)")
    (whole,) = (each for text, each in changes.items() if text.startswith("sampler=BatchSampler("))
    assert whole["gain"] > 1.1 and whole["meaning"] == SAME
    assert changes["num_workers=1"]["meaning"] in (SAME, UNSHOWN)


def test_a_file_that_workers_would_share_is_named(tmp_path):
    found, changes = report(tmp_path, "DataLoader(Open(), batch_size=32)")
    assert not changes and any(
        "holds `file`, which workers cannot share" in n for n in found["notes"]
    )


@pytest.mark.parametrize("loop", [LOOP, COUNTED], ids=["for", "counted"])
def test_the_patch_is_proven_by_a_copy(tmp_path, loop):
    loader = "DataLoader(Slow(), batch_size=32, num_workers=0)"
    done = whowaits(tmp_path, loader, "--patch", loop=loop)
    assert done.returncode == 0, done.stderr
    call = "+loader = DataLoader(Slow(), batch_size=32, num_workers=2"
    proven = {f"{call})", f"{call}, persistent_workers=True)"}  # nearly as fast as each other
    assert proven & {*done.stdout.splitlines()}, done.stdout
