"""Images in class folders: the class of a file is its folder's path below the root, so names may be nested (`bird/owl`)."""

from __future__ import annotations

import os
from pathlib import Path

from tasks.data.sources.forms import ImageFile, ImageFiles, Rejected
from tasks.errors import DataNotFound
from tasks.settings import DataSettings

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"})


def find(settings: DataSettings) -> ImageFiles:
    """List the image files below `data.path` in a fixed order. Hidden files and other kinds of file are passed over."""
    root = Path(settings.path)
    if not root.is_dir():
        raise DataNotFound(f"{root} is not a folder; `data.path` must be a folder with one sub-folder per class")
    files, rejected, empty = [], [], []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = Path(folder)
        label = here.relative_to(root).as_posix()
        images = sorted(name for name in names if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."))
        if label == ".":
            rejected += [Rejected(id=name, reason="lies outside any class folder") for name in images]
            continue
        files += [ImageFile(id=f"{label}/{name}", path=here / name, label=label) for name in images]
        if not images and not folders:
            empty.append(label)
    if not files:
        raise DataNotFound(f"{root} holds no class folder with images ({', '.join(sorted(SUFFIXES))})")
    return ImageFiles(root=root, files=files, rejected=rejected, empty_classes=empty)
