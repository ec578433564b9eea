"""Shards are what any TFRecord reader expects, and damage is named by file and record."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from throughline.data.shards.records import encode_example, encode_examples, example_key
from throughline.data.shards.tfrecord import (
    frame,
    frame_buffer,
    read_records,
    seal_frames,
    write_frames,
)
from throughline.shared.errors import CorruptShard
from throughline.shared.files import digest_file

RECORDS = [
    encode_example(
        key=example_key(str(number)), label=number, value=bytes([number]) * (number * 50)
    )
    for number in range(6)
]
SECOND = len(b"".join(frame(RECORDS[0])))  # where the second record begins


@given(key=st.integers(0, 2**63 - 1), label=st.integers(0, 2**40), image=st.binary(max_size=400))
@settings(max_examples=60, deadline=None)
def test_tensorflow_parses_what_we_encode_to_the_byte(key, label, image):
    parsed = tf.train.Example.FromString(encode_example(key=key, label=label, value=image))
    assert parsed.features.feature["key"].int64_list.value[:] == [key]
    assert parsed.features.feature["label"].int64_list.value[:] == [label]
    assert parsed.features.feature["image"].bytes_list.value[:] == [image]


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_whole_arrays_are_encoded_and_framed_as_one_by_one(data):
    count, size, numbers = (
        data.draw(st.integers(1, 7)),
        data.draw(st.integers(1, 300)),
        data.draw(st.booleans()),
    )
    draw = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    keys, values = (
        draw.integers(0, 2**63 - 1, count),
        draw.standard_normal((count, size)).astype(np.float32),
    )
    labels = (
        draw.standard_normal(count).astype(np.float32)
        if numbers
        else draw.integers(0, 2**30, count)
    )
    alone = [
        encode_example(key=key, label=label, value=value.tobytes(), feature="features")
        for key, label, value in zip(keys.tolist(), labels.tolist(), values, strict=True)
    ]
    room = frame_buffer(count, len(alone[0]))
    encode_examples(room["record"], keys=keys, labels=labels, values=values, feature="features")
    assert [row.tobytes() for row in room["record"]] == alone
    assert seal_frames(room).tobytes() == b"".join(chain.from_iterable(map(frame, alone)))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_other_readers_read_our_files(tmp_path, compression):
    path = tmp_path / "shard.tfrecord"
    assert write_frames(
        path, chain.from_iterable(map(frame, RECORDS)), compression=compression
    ) == digest_file(path)
    kind = {"none": "", "gzip": "GZIP"}[compression]
    assert [
        record.numpy() for record in tf.data.TFRecordDataset(str(path), compression_type=kind)
    ] == RECORDS
    assert independent_labels(path, compression) == list(range(6))
    assert list(read_records(path, compression=compression)) == RECORDS


def independent_labels(path, compression):
    """Read with the package `tfrecord`, in a process of its own: it registers the same protocol
    buffers as TensorFlow.
    """
    kind = "gzip" if compression == "gzip" else None
    code = (
        f"import json, tfrecord; rows = tfrecord.tfrecord_loader({str(path)!r}, None, {{'label':"
        f" 'int', 'image': 'byte'}}, compression_type={kind!r})"
    )
    code += "; print(json.dumps([int(row['label'][0]) for row in rows]))"
    return json.loads(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
    )


def test_equal_records_give_equal_files(tmp_path):
    for name in ("a", "b"):
        write_frames(tmp_path / name, chain.from_iterable(map(frame, RECORDS)), compression="gzip")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes()[4:8] == bytes(4), (
        "GZIP's header holds no time, so that tomorrow's file is the same"
    )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-3], "record 5 at byte .*: the file ends within the record"),
        (lambda data: data[:5], "record 0 at byte 0: the file ends within a record's header"),
        (
            lambda data: data[:150] + bytes([data[150] ^ 1]) + data[151:],
            f"record 1 at byte {SECOND}: the checksum of the data does not match",
        ),
        (lambda data: b"\xff" + data[1:], "record 0 at byte 0: the checksum of the length"),
    ],
)
def test_damage_is_named_by_file_record_and_offset(tmp_path, damage, words):
    path = tmp_path / "train-00000-of-00001.tfrecord"
    path.write_bytes(damage(b"".join(chain.from_iterable(map(frame, RECORDS)))))
    with pytest.raises(CorruptShard, match=f"{path}: {words}"):
        list(read_records(path, compression="none"))


def test_a_truncated_gzip_shard_is_named(tmp_path):
    path = tmp_path / "shard.tfrecord.gz"
    path.write_bytes(gzip.compress(b"".join(chain.from_iterable(map(frame, RECORDS))))[:-20])
    with pytest.raises(CorruptShard, match="GZIP stream broken"):
        list(read_records(path, compression="gzip"))
