"""The sections of params.yaml as frozen values. Fields have types, defaults, bounds and
descriptions with their units.

Pure declarations: `throughline.config.params` loads and cross-checks them, stages receive the
sections they need, and the Prefect form and docs/configurations.md are generated from them.
"""

# ruff: noqa: F401 - these are the sections, for others to import
from throughline.settings.base import Settings
from throughline.settings.data import DataSettings, RecordSettings, SplitSettings
from throughline.settings.pipeline import (
    BatchSettings,
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
    StorageSettings,
    WindowSettings,
)
from throughline.settings.training import (
    EMULATED_MODEL,
    EarlyStoppingSettings,
    MeasureSettings,
    ModelSettings,
    NamedObject,
    TrainSettings,
)
