"""The sections of params.yaml as frozen values: every field has a type, a default, bounds and a
description with its unit.

Pure declarations: `tasks.params` loads and cross-checks them, the stages receive the sections they
need, the Prefect form and docs/configurations.md are generated from them.
"""

from tasks.settings.base import Settings
from tasks.settings.batch import BatchSettings
from tasks.settings.data import (
    DataSettings,
    ShardSettings,
    SnapshotSettings,
    SplitSettings,
    WindowSettings,
)
from tasks.settings.pipeline import (
    CacheSettings,
    InterleaveSettings,
    JpegDecoding,
    MapSettings,
    PipelineConfig,
    Sampling,
    ServiceSettings,
    ShuffleSettings,
)
from tasks.settings.records import RecordSettings
from tasks.settings.training import (
    EarlyStoppingSettings,
    MeasureSettings,
    ModelSettings,
    NamedObject,
    TrainSettings,
)

__all__ = [
    "BatchSettings",
    "CacheSettings",
    "DataSettings",
    "EarlyStoppingSettings",
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
    "SnapshotSettings",
    "SplitSettings",
    "TrainSettings",
    "WindowSettings",
]
