"""Images in class folders: the class of a file is its folder's path below the root."""

from __future__ import annotations

from pathlib import Path

from throughline.data.sources.base import ImageFile, ImageFiles
from throughline.data.sources.class_folders import list_class_folders
from throughline.settings import DataSettings

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"})


def scan(settings: DataSettings) -> ImageFiles:
    """List the image files below `data.path`, and what cannot be listed.

    Raises:
      DataNotFound: there is no such folder, or no class folder with images in it.
    """
    listed = list_class_folders(settings, SUFFIXES, what="images")
    return ImageFiles(
        root=Path(settings.path),
        files=[
            ImageFile(id=file.id, path=file.path, label=file.label, split=file.split)
            for file in listed.files
        ],
        rejected=listed.rejected,
        empty_classes=listed.empty,
        skipped=listed.skipped,
    )
