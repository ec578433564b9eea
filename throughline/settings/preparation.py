"""Preparation of data: `shard`, `engine`, `snapshot`, `storage`, `window` of params.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from throughline.settings.base import Fraction, Settings
from throughline.shared.data_url import to_store_url

StoredFraction = Annotated[
    Annotated[Literal["auto"], Tag("literal")] | Annotated[Fraction, Tag("constrained")],
    Discriminator(lambda value: "literal" if isinstance(value, str) else "constrained"),
]


class ShardSettings(Settings):
    """Size, number and compression of TFRecord shards, and the threads that write them."""

    target_size_mib: float = Field(default=128, gt=0)
    """largest average size of the shards [MiB]; a single one may be twice as large"""
    min_shards: int = Field(default=8, ge=1, le=10_000)
    """least number of shards per split, so that small data, too, are read in parallel"""
    compression: Literal["none", "gzip"] = "none"
    """gzip: less disk for text and floats, not for JPEG; every epoch unpacks it; compare with a run
    of --set shard.compression=gzip
    """
    writers: int = Field(default=4, ge=1, le=256)
    """threads that write shards; any number gives the same bytes"""


class EngineSettings(Settings):
    """The engine that inspects files and writes shards and snapshot; any gives the same bytes."""

    address: str = Field(default="", pattern=r"^((tcp|tls)://\S+:[0-9]+)?$")
    """scheduler of the Dask cluster to use, such as tcp://scheduler:8786; empty: threads of the
    stages, or `workers`
    """
    workers: int = Field(default=0, ge=0, le=1024)
    """Dask workers that each of these stages starts on its machine; 0: none"""

    @model_validator(mode="after")
    def _one_engine(self) -> EngineSettings:
        if self.address and self.workers:
            raise ValueError("address names a running cluster, workers starts one; set only one")
        return self


class SnapshotSettings(Settings):
    """The content of the snapshot, and the reaction to a damaged shard while writing it."""

    fraction: StoredFraction = "auto"
    """images: share of each split's rows, from the first, whose preprocessed values are stored;
    auto: the most that a configuration reads; all if none reads any
    """
    on_corrupt: Literal["fail", "skip"] = "fail"
    """fail: stop and name it · skip: leave damaged records out, in every configuration, and say so
    """
    max_corrupt_fraction: Fraction = 0.001
    """skip: share of the examples that may be left out before the stage fails anyway"""

    @property
    def stored_fraction(self) -> float:
        """`fraction` as a number; 1 for an `auto` that is not resolved yet."""
        return 1.0 if isinstance(self.fraction, str) else self.fraction


class StorageSettings(Settings):
    """The place of shards and the snapshot's columns: data/, or an object store that many machines
    read. The results are the same; credentials come from the environment.
    """

    url: str = ""
    """bucket and prefix: s3://BUCKET/PREFIX, gs://… or azure://…; empty: in data/"""
    cache: str = Field(default=".throughline/cache", min_length=1)
    """folder into which shards and columns are fetched: one for all runs of the project or, with an
    absolute path, for several projects
    """

    @field_validator("url")
    @classmethod
    def _is_a_bucket(cls, url: str) -> str:
        return to_store_url(url) if url else url


class WindowSettings(Settings):
    """Windows over a time series (`length`, `horizon`, `stride`, `targets`) or over text
    (`tokens`): what the model sees and predicts. No window crosses from one split into another.
    For other data, only the defaults are allowed.
    """

    length: int = Field(default=24, ge=1)
    """time steps the model sees"""
    horizon: int = Field(default=1, ge=1)
    """time steps after these that the model predicts"""
    stride: int = Field(default=1, ge=1)
    """time steps between the beginnings of neighboring windows"""
    targets: list[str] = Field(default=[])
    """columns to predict; empty: all"""
    tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    """text: predict each next token, in windows of this many tokens of all documents in a row;
    absent: predict the class of each document
    """
