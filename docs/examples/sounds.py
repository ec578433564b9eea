"""Sound of 16 bits in WAV files (samples, channels), not compressed."""

from __future__ import annotations

import io
import wave
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from throughline.data.encodings.base import (
    FileEncoding,
    FileInfo,
    InputFile,
    Inspect,
    RejectedValue,
)
from throughline.plan.ops import Op
from throughline.plan.schema import Feature, find_encoding, register
from throughline.settings import DataSettings, PipelineConfig
from throughline.shared.files import digest_blake2b


class DecodeSound(Op):
    """What `decode` means for sounds: samples (samples, channels) int16."""

    name = "decode"
    takes = "example"
    works_on = ("sounds",)
    channels: int

    def compute(self, element: dict[str, Any], draw: Any) -> dict[str, Any]:
        """Exact: 16 bits are fewer than a float32 holds."""
        import tensorflow as tf

        sound = tf.audio.decode_wav(element["sound"], desired_channels=self.channels).audio
        return {**element, "sound": tf.cast(tf.round(sound * 32768), tf.int16)}


@register
class SoundEncoding(FileEncoding):
    """WAV files."""

    name = "sound"
    modality = "sounds"
    noun = "sounds"
    compressed = False
    suffixes = frozenset({".wav"})

    def looks_like(self, name: str, first: bytes) -> bool:
        """Whether a file begins as a WAV file does."""
        return (first[:4], first[8:12]) == (b"RIFF", b"WAVE")

    def decode(self, feature: Feature, config: PipelineConfig | None) -> Op:
        """Samples, all channels."""
        return DecodeSound(channels=feature.channels)

    def open_inspector(self, settings: DataSettings) -> AbstractContextManager[Inspect]:
        """Reads the header of each file."""
        return nullcontext(_inspect)

    def describe(self, shapes: Collection[tuple[int, ...]]) -> Feature:
        """Sounds of any length, of as many channels as the first."""
        encoding, channels = find_encoding("sound"), min(shapes)[-1]
        return Feature(
            name="sound", role="input", encoding=encoding, shape=(None, channels), dtype="int16"
        )


def _inspect(file: InputFile, converted: Path) -> FileInfo:
    data = file.read(lambda opened, size: None)
    try:
        with wave.open(io.BytesIO(data)) as sound:
            shape, bits = (sound.getnframes(), sound.getnchannels()), 8 * sound.getsampwidth()
    except (wave.Error, EOFError) as error:
        raise RejectedValue(f"no WAV file: {error}") from error
    if bits != 16:  # noqa: PLR2004
        raise RejectedValue(f"{bits} bits, not 16")
    digest = digest_blake2b(data)
    return FileInfo(path=file.path, bytes=len(data), digest=digest, shape=shape)
