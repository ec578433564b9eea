"""Sources of several kinds of data that a small model learns, for tests."""

from pathlib import Path

import numpy as np
import pandas as pd

from tests.support.small_data import picture
from tests.support.texts import WORDS

COLORS = ("blue", "green", "red")
# Columns that a model sees next to images and texts.
SEEN = {"numeric": ["size"], "categorical": ["color"], "missing": {"size": "median"}}
SUBJECTS = {"ham": "meeting report lunch monday", "spam": "winner prize click cash"}


def make_items(rows: int) -> pd.DataFrame:
    """Items whose size tells their label, a price in thousands and a weight in fractions, and
    images and texts that say nothing.

    Every 19th has no size; the third has no weight, and the fifth no text.
    """
    draw = np.random.default_rng(3)
    words = (draw.choice(WORDS, size=1 + number % 30) for number in range(rows))
    texts = [" ".join([f"{number}", *some]) for number, some in enumerate(words)]
    sizes = np.arange(rows) / 4
    table = pd.DataFrame(
        {
            "path": [f"photos/{number:03d}.png" for number in range(rows)],
            "text": texts,
            "label": ["large" if number >= rows / 2 else "small" for number in range(rows)],
            "size": ["" if number % 19 == 3 else f"{size}" for number, size in enumerate(sizes)],
            "color": [COLORS[number % 3] for number in range(rows)],
            "price": [f"{1e5 * (1 + size / sizes[-1]):.1f}" for size in sizes],
            "weight": [f"{0.01 * (2 - size / sizes[-1]):.6f}" for size in sizes],
        }
    )
    table.loc[2, "weight"], table.loc[4, "text"] = "", ""
    return table


def write_items(root: Path, rows: int = 120) -> pd.DataFrame:
    """Write items.csv and the images that it lists, the sixth of which is damaged."""
    table = make_items(rows)
    (root / "photos").mkdir(parents=True)
    for number, name in enumerate(table["path"]):
        picture(number, size=(12, 10)).save(root / name)
    (root / table["path"][5]).write_bytes(b"no image")
    table.to_csv(root / "items.csv", index=False)
    return table


def write_mails(root: Path) -> pd.DataFrame:
    """Write mails of 3 to 40 words into folders of two classes, mostly about their class."""
    draw = np.random.default_rng(5)
    for number in range(160):
        label = ("ham", "spam")[number % 2]
        words = [*SUBJECTS[label].split() * 3, "dear", "the", "and", "friend"]
        path = root / "mails" / label / f"{number:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{' '.join(draw.choice(words, size=draw.integers(3, 40)))} {number}\n")
    return pd.DataFrame()


def write_waves(root: Path) -> pd.DataFrame:
    """Write waves.csv: two waves over 3,000 hours."""
    root.mkdir(parents=True)
    hours = np.arange(3000)
    table = pd.DataFrame({"hour": hours, "load": np.sin(hours / 20), "wind": np.cos(hours / 7)})
    table.to_csv(root / "waves.csv", index=False)
    return table
