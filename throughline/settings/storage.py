"""Where prepared data are kept: section `storage` of params.yaml."""

from __future__ import annotations

from pydantic import Field, field_validator

from throughline.settings.base import Settings
from throughline.shared.data_url import to_store_url


class StorageSettings(Settings):
    """Where shards and the snapshot's columns are kept: in data/, or in an object store that many
    machines read. The results are the same; credentials come from the environment.
    """

    url: str = Field(
        default="",
        description=("bucket and prefix: s3://BUCKET/PREFIX, gs://… or azure://…; empty: in data/"),
    )
    cache: str = Field(
        default=".throughline/cache",
        min_length=1,
        description=(
            "folder that they are fetched into, for all runs of this project or, with an"
            " absolute path, for several processes and projects"
        ),
    )

    @field_validator("url")
    @classmethod
    def _is_a_bucket(cls, url: str) -> str:
        return to_store_url(url) if url else url
