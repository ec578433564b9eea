"""The sections of params.yaml as frozen values. Every field has a type, a default, bounds and a
description with its unit.

Pure declarations: `throughline.config.params` loads and cross-checks them, stages receive the
sections they need, and the Prefect form and docs/configurations.md are generated from them.
"""

from throughline.settings.base import Settings
from throughline.settings.batch import BatchSettings
from throughline.settings.data import DataSettings, SplitSettings
from throughline.settings.pipeline import (
    CacheSettings,
    InterleaveSettings,
    JpegDecoding,
    MapSettings,
    PipelineConfig,
    Sampling,
    ServiceSettings,
    ShuffleSettings,
    SnapshotPart,
)
from throughline.settings.preparation import (
    EngineSettings,
    ShardSettings,
    SnapshotSettings,
    WindowSettings,
)
from throughline.settings.records import RecordSettings
from throughline.settings.storage import StorageSettings
from throughline.settings.training import (
    EMULATED_MODEL,
    EarlyStoppingSettings,
    MeasureSettings,
    ModelSettings,
    NamedObject,
    TrainSettings,
)

__all__ = [
    "EMULATED_MODEL",
    "BatchSettings",
    "CacheSettings",
    "DataSettings",
    "EarlyStoppingSettings",
    "EngineSettings",
    "InterleaveSettings",
    "JpegDecoding",
    "MapSettings",
    "MeasureSettings",
    "ModelSettings",
    "NamedObject",
    "PipelineConfig",
    "RecordSettings",
    "Sampling",
    "ServiceSettings",
    "Settings",
    "ShardSettings",
    "ShuffleSettings",
    "SnapshotPart",
    "SnapshotSettings",
    "SplitSettings",
    "StorageSettings",
    "TrainSettings",
    "WindowSettings",
]
