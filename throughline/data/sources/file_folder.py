"""Files in class folders: each is an example, whose class is its folder's path."""

from __future__ import annotations

from typing import cast

from throughline.data.encodings.base import FileEncoding
from throughline.data.found import Files
from throughline.data.object_folder import ObjectFolder
from throughline.data.sources.class_folders import list_encoded
from throughline.plan.schema import find_encoding
from throughline.settings import DataSettings
from throughline.settings.source_kinds import SOURCES


def scan(settings: DataSettings, objects: ObjectFolder | None = None) -> Files:
    """List the files of the source's encoding below `data.path`, or in `objects`."""
    encoding = cast("FileEncoding", find_encoding(SOURCES[settings.source].encoding))
    return list_encoded(settings, encoding, objects=objects)
