"""Planted faults: small, plausible mistakes in the program, each of which a test must catch.

A fault is known by a snippet of source that occurs once below tasks/ and flows/, in whichever file
and however its lines are broken, so that the list survives modules being moved;
tests/test_mutations.py names the snippets that do not apply. `python -m tests.mutation_testing`
plants them. A fault changes something that can be observed: where nothing catches it, a test is
missing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A snippet of source, what takes its place, and the tests that are expected to catch that.

    `tests` are files, of which all but the slow tests run, or ids of single tests, which run
    whatever their mark; none: the whole quick lane.
    """

    name: str
    before: str
    after: str
    tests: tuple[str, ...] = ()


COLUMNS = ("tests/data/test_columns.py",)
CROPPING = ("tests/pipelines/test_cropping.py",)
DATASET = "tests/pipelines/test_dataset.py::"
HEADLINE = ("tests/reporting/test_headline.py",)
DOCUMENTS = ("tests/data/test_text_sources.py",)
EXAMPLES = ("tests/data/test_example_features.py",)
FITTING = ("tests/pipelines/test_tokenizer_fitting.py",)
EXTERNAL = ("tests/data/test_external_shards.py",)
GIVEN = "tests/pipelines/test_tokenizer_fitting.py::"
OFFSETS = ("tests/data/test_record_offsets.py",)
RANDAUGMENT = ("tests/pipelines/test_randaugment.py",)
TEXT = "tests/pipelines/test_text.py::"
SNAPSHOTS = "tests/pipelines/test_snapshots.py::"
DAMAGE = "tests/pipelines/test_damaged_shards.py::"
FETCH = ("tests/test_fetch.py",)
GPUS = ("tests/measurement/test_gpus.py",)
INGEST = ("tests/test_ingest.py",)
KERNELS = ("tests/pipelines/test_ops.py",)
LEAKS = ("tests/faults/test_leaks.py",)
LEFTOVERS = ("tests/faults/test_leftovers.py",)
LOCKS = ("tests/faults/test_locks.py",)
MANIFEST = ("tests/data/test_manifest.py",)
NUMBERS = ("tests/test_tables_and_series.py",)
ODD_FILES = ("tests/faults/test_odd_files.py",)
ORDER = ("tests/data/test_splits.py",)
PARAMS = ("tests/test_params.py",)
PREDICT = ("tests/prediction/test_predict.py",)
PINNED = ("tests/pipelines/test_pinned_draws.py",)
PLAN = ("tests/pipelines/test_plan.py",)
RAGGED = ("tests/data/test_ragged.py",)
BEST_FIT = ("tests/pipelines/test_best_fit.py",)
LENGTHS = ("tests/pipelines/test_length_batches.py",)
PACKS = ("tests/pipelines/test_packed_batches.py",)
TABLES = ("tests/data/test_tables.py",)
SEQUENCES = ("tests/pipelines/test_sequences.py",)
SAMPLERS = ("tests/pipelines/test_samplers.py",)
SHARD = ("tests/test_shard.py",)
TFRECORD = ("tests/data/test_tfrecord.py",)
UNDECODABLE = ("tests/faults/test_undecodable.py",)
RULES = ("tests/diagnosis/test_rules.py",)
RESOLUTION = ("tests/flows/test_resolution.py",)
WORKSPACES = ("tests/faults/test_workspaces.py",)
ACCESS = ("tests/flows/test_credentials.py",)
CHAMPION = ("tests/tracking/test_champion.py",)
CHECKPOINTS = ("tests/faults/test_checkpoints.py",)
CODE_IDENTITY = ("tests/test_code_identity.py",)
DIAGNOSIS = ("tests/diagnosis/test_diagnose.py",)
DRAWS = ("tests/measurement/test_draws.py",)
EQUALITY = ("tests/measurement/test_equality.py",)
FILES = ("tests/test_files.py",)
TRAINING_WORKERS = ("tests/pipelines/test_training_workers.py",)
REACH = ("tests/attacks/test_access_policy.py",)
REPORT = ("tests/reporting/test_report.py",)
RESULTS = ("tests/test_results.py",)
RESUME = ("tests/training/test_resume.py",)
STORED = ("tests/pipelines/test_stored.py",)
STEADY_STATE = ("tests/measurement/test_steady_state.py",)
VERDICT = ("tests/measurement/test_verdict.py",)
STOPPING = (
    "tests/training/test_resume.py::test_stopping_after_any_step_changes_nothing[optimized-7]",
)

FAULTS = (
    # Batches by length
    Fault(
        "a text as long as a boundary is in the next bucket",
        'boundaries, side="right")',
        'boundaries, side="left")',
        LENGTHS,
    ),
    Fault(
        "the same examples meet in every epoch",
        'fold(self.seed, epoch[:, None], "bucket", bucket[:, None])',
        'fold(self.seed, 0 * epoch[:, None], "bucket", bucket[:, None])',
        LENGTHS,
    ),
    Fault(
        "the last batch of a bucket reads the next one",
        "tf.gather(buckets.used, bucket) - start)",
        "full)",
        LENGTHS,
    ),
    Fault(
        "documents go into the emptiest row",
        "(np.flatnonzero(held[length:]) + length).tolist()",
        "(np.flatnonzero(held[length:]) + length).tolist()[::-1]",
        BEST_FIT,
    ),
    Fault(
        "the same documents share a row in every epoch",
        'fold(self.seed, epochs, "length", lengths)',
        'fold(self.seed, 0 * epochs, "length", lengths)',
        PACKS,
    ),
    Fault(
        "positions go on from document to document",
        "positions = places - tf.gather(starts, segment, batch_dims=1)",
        "positions = places",
        SEQUENCES,
    ),
    # Records, shards, columns
    Fault(
        "the checksum of a record is not compared",
        "_masked(data) == _CRC.unpack(tail)[0]",
        "tail",
        TFRECORD,
    ),
    Fault(
        "the checksum of a length is not compared",
        "_masked(head[:8]) != length_crc or length",
        "length",
        TFRECORD,
    ),
    Fault(
        "a record without its end is taken",
        "len(data) < length or len(tail) < _CRC.size",
        "len(data) < length",
        TFRECORD,
    ),
    Fault(
        "offsets leave the framing out",
        "offset += _HEAD.size + len(data) + _CRC.size",
        "offset += len(data)",
        TFRECORD,
    ),
    Fault("compressed shards hold the time", "mtime=0", "mtime=None", TFRECORD),
    Fault(
        "all groups of a number say that another follows",
        "groups[:, :-1] |= 0x80",
        "groups |= 0x80",
        TFRECORD,
    ),
    Fault(
        "later blocks get the labels of the first",
        "labels=labels[part]",
        "labels=labels[: len(block)]",
        SHARD,
    ),
    Fault(
        "a shard of another dataset is passed over",
        "if path.name not in listed",
        "if not path.name",
        SHARD,
    ),
    Fault(
        "a shard that is too long is taken",
        "size and bytes_on_disk != shard.bytes",
        "size and bytes_on_disk < shard.bytes",
        SHARD,
    ),
    Fault(
        "an image that changed since ingest is stored",
        "if digest_blake2b(value) != digest:",
        "if not value:",
        ODD_FILES,
    ),
    Fault(
        "a finished shard is written again", "exists = job.path.exists()", "exists = False", SHARD
    ),
    Fault(
        "an interrupted shard stage goes on with other data",
        '{"data": manifest.digest, "settings"',
        '{"settings"',
        SHARD,
    ),
    Fault(
        "what was lost does not count as other data",
        "named[shard.name].records < shard.records",
        "False",
        (DAMAGE + "test_damaged_records_are_left_out_up_to_a_bound",),
    ),
    Fault(
        "of two twins the worse is used",
        "best = max(twins",
        "best = min(twins",
        (DAMAGE + "test_a_compressed_twin_makes_good_for_a_damaged_shard",),
    ),
    Fault("only the last shard's losses count", "lost += missing", "lost = missing", UNDECODABLE),
    Fault(
        "rows are written at the wrong place",
        "file.seek(start * column.stride)",
        "file.seek(start)",
        COLUMNS,
    ),
    Fault(
        "a chunk's digest is not compared",
        "digest_blake3(data) != chunk.digests[column.name]",
        "not data",
        COLUMNS,
    ),
    Fault("a snapshot of another key is read", "index.key != key", "not index.key", COLUMNS),
    Fault("a column that is too short is read", "if size != needed:", "if size is None:", COLUMNS),
    Fault(
        "whoever reads a column can change it",
        'mode="c", shape=shape',
        'mode="r+", shape=shape',
        COLUMNS,
    ),
    Fault(
        "ragged values begin where they end", "np.cumsum(sizes) - sizes", "np.cumsum(sizes)", RAGGED
    ),
    Fault(
        "the end of ragged values is not aligned",
        "return -(-size // aligned) * aligned",
        "return size",
        RAGGED,
    ),
    Fault(
        "gaps between the tokens of documents",
        "return 1 if rank == 1 else ALIGNMENT",
        "return ALIGNMENT",
        RAGGED,
    ),
    Fault(
        "windows of text leave tokens out between them",
        'split_tokens(tf.gather(columns["text"], places)) | {"key": rows}',
        'split_tokens(tf.gather(columns["text"], places + rows[:, None])) | {"key": rows}',
        ("tests/pipelines/test_next_token.py",),
    ),
    Fault(
        "a decoder sees the token that it is to predict",
        "causal = positions[:, :, None] >= positions[:, None, :]",
        "causal = positions[:, :, None] >= positions[:, None, :] - 1",
        ("tests/training/test_transformers.py",),
    ),
    # The snapshot
    Fault(
        "a note says done before the rows are flushed",
        "flush(context.folder, shard.split, context.fixed_size_columns)",
        "pass",
        (SNAPSHOTS + "test_rows_have_reached_the_disk_before_a_note_says_that_they_are_done",),
    ),
    Fault(
        "all chunks of a shard begin at its first row",
        "start=start + count, values",
        "start=start, values",
        (SNAPSHOTS + "test_a_snapshot_is_the_same_however_many_rows_are_made_together",),
    ),
    Fault(
        "the first row counts records, not examples",
        "passed[shard.split] += shard.examples",
        "passed[shard.split] += shard.records",
        NUMBERS,
    ),
    Fault(
        "a shard with fewer examples than listed is taken",
        "if count != shard.examples:",
        "if count > shard.examples:",
        (DAMAGE + "test_a_shard_with_fewer_examples_than_the_index_says_is_refused",),
    ),
    Fault(
        "statistics are taken over all splits",
        "if shard.split == STATISTICS_OF",
        "if shard.split",
        NUMBERS,
    ),
    Fault(
        "moments of parts are added without their distance",
        " + difference**2 * (count * part.count / total)",
        "",
        NUMBERS,
    ),
    Fault(
        "a snapshot's key forgets the shards", '{"shards": shards.digest, "ops"', '{"ops"', STORED
    ),
    Fault(
        "a snapshot's key forgets TensorFlow",
        '"libraries": installed_versions(libraries),',
        "",
        STORED,
    ),
    Fault(
        "a stage's identity forgets its program",
        '"program": digest_code(stage),',
        "",
        ("tests/test_stale.py",),
    ),
    Fault(
        "an op's identity forgets its version",
        '"version": self.version, **self.model_dump()',
        "**self.model_dump()",
        STORED,
    ),
    Fault(
        "an op's identity forgets its arguments",
        '"version": self.version, **self.model_dump()',
        '"version": self.version',
        STORED,
    ),
    Fault(
        "files come in another order than the shards",
        "rows = rows.iloc[shard_order(rows)]",
        "pass",
        (DATASET + "test_original_files_come_in_the_order_of_the_shards",),
    ),
    # Orders and draws
    Fault("the seed is left out of every draw", "names = [seed, *(", "names = [*(", PINNED),
    Fault(
        "the epoch is left out of the permutation",
        "key = fold(seed, epoch, ",
        "key = fold(seed, epoch * 0, ",
        PINNED,
    ),
    Fault("the cipher has too few rounds", "CIPHER_ROUNDS = 16", "CIPHER_ROUNDS = 4", SAMPLERS),
    Fault(
        "the last window is as large as the others", "count - which * window)", "count)", SAMPLERS
    ),
    Fault(
        "the last chunk counts as whole",
        "max(1, count // chunk)",
        "max(1, -(-count // chunk))",
        SAMPLERS,
    ),
    Fault(
        "the circle of chunks is not turned",
        "(rows + tf.cast(rotation, tf.int64)) % count",
        "rows % count",
        PINNED,
    ),
    Fault(
        "draws that are left over go to the wrong classes",
        "np.argsort(quotas - exact",
        "np.argsort(exact - quotas",
        SAMPLERS,
    ),
    Fault(
        "every epoch begins a class with the same example",
        'fold(seed, epoch, "class"',
        'fold(seed, epoch * 0, "class"',
        PINNED,
    ),
    Fault(
        "a stream has the same order each epoch",
        "fold(self.seed, epoch, who)",
        "fold(self.seed, epoch * 0, who)",
        PINNED,
    ),
    Fault(
        "equal ops draw the same",
        "salts=(op.name, position)",
        "salts=(op.name,)",
        (DATASET + "test_equal_ops_draw_independently",),
    ),
    Fault(
        "the last batch is counted out",
        "return -(-examples // batch_size)",
        "return examples // batch_size",
        ORDER,
    ),
    Fault("the seed of the split is dropped", 'f"{seed}:{digest}"', 'f"{digest}"', ORDER),
    Fault("shares of splits do not add up", "edge += share", "edge = share", ORDER),
    Fault(
        "the last window of a series is left out", "// self.stride + 1)", "// self.stride)", NUMBERS
    ),
    Fault("windows of a stream begin at every step", "shift=step.stride", "shift=1", NUMBERS),
    Fault(
        "weights of classes are ignored by streams",
        "float(weights[label] / weights.sum())",
        "1 / len(drawn)",
        DRAWS,
    ),
    Fault(
        "the epoch of a step is counted wrong",
        "epoch = step // order.steps_per_epoch",
        "epoch = step // (order.steps_per_epoch + 1)",
        PINNED,
    ),
    Fault(
        "the last batch repeats its last row",
        "rows if always_full else rows[: self.size(step)]",
        "rows",
        (DATASET + "test_balanced_draws_every_class_alike",),
    ),
    Fault(
        "a stream begins behind the epoch that it is to begin in",
        "first_epoch = first_step // self.steps_per_epoch",
        "first_epoch = -(-first_step // self.steps_per_epoch)",
        (DATASET + "test_a_stream_begins_with_the_epoch_of_the_step_that_is_asked_for",),
    ),
    Fault(
        "iterations begin with the second epoch",
        "assign_add(tf.cast(one, tf.int64)) - 1",
        "assign_add(tf.cast(one, tf.int64))",
        (DATASET + "test_every_iteration_is_the_next_epoch_where_that_is_asked_for[snapshot]",),
    ),
    # Hosts
    Fault(
        "workers share what does not divide",
        "return examples - examples % batch_size % self.count",
        "return examples",
        TRAINING_WORKERS,
    ),
    Fault(
        "workers do not count the chief",
        '(counts["chief"] if kind == "worker" else 0)',
        "0",
        TRAINING_WORKERS,
    ),
    Fault(
        "a batch that workers cannot share is taken",
        "if batch_size % self.count:",
        "if batch_size < self.count:",
        TRAINING_WORKERS,
    ),
    Fault(
        "an index beyond the cluster is taken",
        "not 0 <= index < counts[kind]",
        "not 0 <= index <= counts[kind]",
        TRAINING_WORKERS,
    ),
    Fault(
        "slices of workers overlap",
        "size * self.worker.index // self.worker.count",
        "size * max(0, self.worker.index - 1) // self.worker.count",
        (DATASET + "test_workers_get_equal_slices_of_what_one_worker_would_see[3-9]",),
    ),
    # Ops
    Fault(
        "a flip reverses the channels",
        "tf.stack([-1, shape[2], shape[3]])), [1])",
        "tf.stack([-1, shape[2], shape[3]])), [2])",
        KERNELS,
    ),
    Fault(
        "a random crop never reaches the last row",
        "tf.cast(room + 1, drawn.dtype)",
        "tf.cast(room, drawn.dtype)",
        KERNELS,
    ),
    Fault(
        "a resized crop takes the last rectangle that fits",
        "first_fit = tf.argmax(",
        "first_fit = ATTEMPTS - tf.argmax(",
        CROPPING,
    ),
    Fault(
        "a resized crop has its area by height alone",
        "tf.round(tf.sqrt(area / aspect))",
        "tf.round(tf.sqrt(area))",
        CROPPING,
    ),
    Fault(
        "where no rectangle fits the image's corner is taken",
        "centered = first_fit == ATTEMPTS",
        "centered = first_fit > ATTEMPTS",
        CROPPING,
    ),
    Fault(
        "all draws of an example are one",
        "key[..., None], numbers",
        "key[..., None], 0 * numbers",
        PINNED,
    ),
    Fault(
        "a fetched crop is never flipped",
        "flipped = tf.math.logical_xor(flipped, draw_flipped(key, draw))",
        "flipped = flipped & draw_flipped(key, draw)",
        CROPPING,
    ),
    Fault(
        "a crop beyond the image keeps what was in memory",
        "target.fill(0)",
        "pass",
        CROPPING,
    ),
    Fault(
        "a service is sent what OpenCV computes",
        "if op.opencv\n",
        "if False\n",
        ("tests/pipelines/test_constraints.py",),
    ),
    Fault(
        "a rotation turns about another center",
        "(cos * wide - sin * tall)",
        "(cos * wide + sin * tall)",
        KERNELS,
    ),
    Fault(
        "images only become brighter",
        "* 2 - 1) * (op.delta * 255)",
        "* 2) * (op.delta * 255)",
        PINNED,
    ),
    Fault(
        "mixup keeps the label of the first image",
        "label * share[:, None] + tf.roll(label, -1, 0) * (1 - share[:, None])",
        "label",
        KERNELS,
    ),
    Fault(
        "cutmix mixes labels the wrong way round",
        "label * (1 - covered) + tf.roll(label, -1, 0) * covered",
        "label * covered + tf.roll(label, -1, 0) * (1 - covered)",
        KERNELS,
    ),
    Fault(
        "a constant channel is divided by zero",
        "[value or 1.0 for value in",
        "[value for value in",
        KERNELS,
    ),
    Fault(
        "pixels wrap around instead of saturating",
        "tf.saturate_cast(tf.round(image)",
        "tf.cast(tf.round(image)",
        KERNELS,
    ),
    Fault(
        "a cutout is a pixel too large",
        "pixels < (first + size)",
        "pixels <= (first + size)",
        KERNELS,
    ),
    Fault(
        "the device forgets the offset",
        "layers.Rescaling(op.scale, op.offset, ",
        "layers.Rescaling(op.scale, ",
        KERNELS,
    ),
    # Plans and parameters
    Fault(
        "files of a series are shuffled",
        '("shards", "gzip_shards") and spec.window is None',
        '("shards", "gzip_shards")',
        PLAN,
    ),
    Fault(
        "labels are finished on the device",
        '== "device" and not op.on_labels)',
        '== "device")',
        PLAN,
    ),
    Fault(
        "a random op may be cached", "if after in [op.name for op in augment]:", "if False:", PLAN
    ),
    Fault(
        "drawing by class does not ask for a permutation",
        'and in_any_order and config.shuffle.kind != "global"',
        "and False",
        PLAN,
    ),
    Fault(
        "a random op may be stored",
        "in params.preprocess if op.random]",
        "in params.preprocess if False]",
        PARAMS,
    ),
    Fault(
        "splits may leave nothing to train on",
        "params.data.split.test >= 1",
        "params.data.split.test > 1",
        PARAMS,
    ),
    Fault(
        "true counts as a number",
        "type(value) is int and value >= 1",
        "isinstance(value, int) and value >= 1",
        PARAMS,
    ),
    Fault(
        "aliases of an override are expanded",
        "any(isinstance(event, AliasEvent)",
        "any(False",
        REACH,
    ),
    Fault(
        "data of one's own may be where fetch writes",
        "if not path.is_relative_to(raw) or",
        "if True or",
        PARAMS,
    ),
    # Fetch, ingest
    Fault(
        "what was fetched is not compared with its digest",
        "hexdigest() == digest",
        "hexdigest() != ''",
        FETCH,
    ),
    Fault("fetch follows a link", "if target.is_symlink():", "if False:", FETCH),
    Fault(
        "fetch replaces files that were edited",
        "if (name, digest) not in known)",
        "if name not in dict(known))",
        FETCH,
    ),
    Fault(
        "a training copy wins over a held-out one",
        "rank = [-SPLITS.index(split)",
        "rank = [SPLITS.index(split)",
        INGEST,
    ),
    Fault(
        "one more reject than allowed",
        "len(rejects) <= limit * total",
        "len(rejects) <= limit * total + 1",
        INGEST,
    ),
    Fault(
        "the source's own split is ignored",
        "[given or assign_split(digest",
        "[assign_split(digest",
        INGEST,
    ),
    Fault(
        "a test split is dealt beside the source's own",
        '{} if "test" in rows["split"].tolist() else',
        "{} if False else",
        INGEST,
    ),
    Fault("kept duplicates may be listed twice", ' | rows.duplicated("id").to_numpy()', "", LEAKS),
    Fault("examples may share a key", "is not example_id:", "is None:", LEAKS),
    Fault(
        "images may be outside the data root",
        "if not path.resolve().is_relative_to(root.resolve()):",
        "if False:",
        ODD_FILES,
    ),
    Fault(
        "a linked folder may be outside the data root",
        "if not target.is_relative_to(self.root.resolve()):",
        "if False:",
        ODD_FILES,
    ),
    Fault(
        "orientation is not applied",
        " and image.getexif().get(_ORIENTATION) in _UPRIGHT",
        "",
        INGEST,
    ),
    Fault(
        "the manifest's digest forgets the labels",
        '("id", "digest", "label", "split")]',
        '("id", "digest", "split")]',
        MANIFEST,
    ),
    Fault("a manifest that lacks rows is read", "if len(table) != rows:", "if False:", MANIFEST),
    Fault(
        "a label that is missing becomes a class",
        'np.flatnonzero(np.asarray(pc.equal(label, ""), bool)).tolist()',
        "()",
        LEAKS,
    ),
    # Files
    Fault(
        "a file is renamed before it is flushed",
        "flush(temporary)\n        os.replace",
        "os.replace",
        FILES,
    ),
    Fault("a folder takes its place before it is flushed", "    flush_folder(new)\n", "", FILES),
    Fault(
        "other work goes on in an interrupted folder",
        "_read_key(partial) != key",
        "_read_key(partial) is None",
        FILES,
    ),
    Fault(
        "the old folder is not put back",
        "if old.exists() and not path.exists():",
        "if False:",
        LEFTOVERS,
    ),
    Fault(
        "temporary files of living processes are removed",
        "and not _is_alive(int(match[1]))",
        "",
        LEFTOVERS,
    ),
    Fault(
        "a scratch folder is not locked",
        "fcntl.flock(descriptor, fcntl.LOCK_EX)",
        "pass",
        LEFTOVERS,
    ),
    Fault(
        "parts of a digest run into each other",
        'state.update(len(part).to_bytes(8, "little"))',
        "pass",
        PINNED,
    ),
    # Errors
    Fault(
        "an error that is no damage is swallowed",
        "if not problems:\n            raise",
        "if not problems:\n            return",
        (DAMAGE + "test_an_error_that_is_no_damage_stays_what_it_is",),
    ),
    Fault(
        "a bug is swallowed",
        "raise\n            print(failure",
        "return\n            print(failure",
        ("tests/faults/test_disks.py::test_other_errors_keep_their_traceback",),
    ),
    # Equality and draws
    Fault(
        "an example that comes twice cancels out",
        "(total + digest_example(key, label, value))",
        "(total ^ digest_example(key, label, value))",
        PINNED,
    ),
    Fault(
        "the digest of an example forgets its label",
        "for part in (key, label, value)]",
        "for part in (key, value)]",
        EQUALITY,
    ),
    Fault("two digests count as one", "if len(digests) > 1:", "if len(digests) > 2:", REPORT),
    Fault(
        "examples of another split are taken", "int((self._keys[rows] != keys).sum())", "0", DRAWS
    ),
    # Measurement
    Fault(
        "buffers that fill up count as used up",
        "median(prepared - each.prepared_after_full",
        "median(each.prepared_after_full - prepared",
        STEADY_STATE,
    ),
    Fault(
        "an undecided stall is that of one side",
        "return min(lows), max(highs)",
        "return max(lows), min(highs)",
        STEADY_STATE,
    ),
    Fault(
        "what lay prepared is timed",
        "warm_up = 1 + min(drain_steps, max(steps, MAX_WARM_UP_STEPS))",
        "warm_up = 1",
        STEADY_STATE,
    ),
    Fault(
        "a disturbed round widens the interval",
        ">= TRIMMING_ROUNDS",
        "> TRIMMING_ROUNDS",
        STEADY_STATE,
    ),
    Fault(
        "sides that disagree get a margin",
        "MARGIN_PCT if stall.decided else 0.0",
        "0.0 if stall.decided else MARGIN_PCT",
        VERDICT,
    ),
    Fault(
        "validation prepares no batches",
        "free = min(state.prepared, steps - 1)",
        "free = 0",
        VERDICT,
    ),
    Fault(
        "a cold epoch is a cross_check",
        "if trained is None or trained.train_examples_per_s == trained.cold_examples_per_s:",
        "if trained is None:",
        VERDICT,
    ),
    Fault(
        "epochs contradict a verdict from one side only",
        "cross_check.high_pct + DRIFT_PCT if",
        "stall.pct if",
        VERDICT,
    ),
    Fault(
        "the best that is beaten is tied",
        "ratio_interval(top, row, among=rows)[0] <= 1",
        "ratio_interval(top, row, among=rows)[1] <= 1",
        REPORT,
    ),
    Fault(
        "of equals the one that waits most is best",
        "min(candidates, key=lambda row",
        "max(candidates, key=lambda row",
        REPORT,
    ),
    Fault(
        "what is wide and may be 1 is a tie",
        "low <= 1 <= high and high >= WIDE * low",
        "False",
        HEADLINE,
    ),
    Fault(
        "quality is the same unchecked",
        "if abs(ours - theirs) <= allowed",
        "if True",
        HEADLINE,
    ),
    Fault(
        "what others take disturbs although as much is idle",
        "self.others_cpu_pct - self.idle_cpu_pct",
        "self.others_cpu_pct",
        ("tests/measurement/test_other_processes.py",),
    ),
    Fault(
        "a model with other layers has the same ceiling",
        "if row.model_layers == layers",
        "if True",
        REPORT,
    ),
    Fault(
        "problems of a stage are details",
        "text.startswith((PROBLEM_MARK, DVC_WARNING))",
        "text.startswith(DVC_WARNING)",
        ("tests/flows/test_terminal.py",),
    ),
    Fault(
        "a snapshot has paid an epoch too early",
        "math.ceil(spent / (other - epoch))",
        "math.floor(spent / (other - epoch))",
        REPORT,
    ),
    Fault(
        "only results that are too good are warned of",
        "abs(score - middle) > allowed",
        "score - middle > allowed",
        REPORT,
    ),
    Fault(
        "a metric of 0 counts as not measured",
        "if (value := known[name]) is not None",
        "if (value := known[name])",
        RESULTS,
    ),
    Fault(
        "a result of another form makes every configuration again",
        "cls.STAGE.format(name=folder.name)",
        'cls.STAGE.partition("@")[0]',
        RESULTS,
    ),
    Fault(
        "the table shows the rate of the epochs as that of the training",
        "{row.steady_examples_per_s:,.0f}",
        "{row.train_examples_per_s:,.0f}",
        ("tests/reporting/test_table.py",),
    ),
    Fault(
        "the score is the validation's where there is a test split",
        "row.val_metric if row.test_metric is None else row.test_metric",
        "row.val_metric",
        CHAMPION,
    ),
    Fault(
        "what is approximate by its own wish must be equal, too",
        "in built.items() if result.pixel_difference is None",
        "in built.items()",
        (
            "tests/reporting/test_report.py"
            "::test_unlike_work_is_not_compared_unless_it_is_approximate_by_its_own_wish",
        ),
    ),
    Fault(
        "the first pass counts as warm",
        "in timings[1:] or timings",
        "in timings",
        ("tests/measurement/test_throughput.py",),
    ),
    Fault(
        "an execution's time counts as a step's",
        "np.diff(self.moments) * 1e3 / self.steps",
        "np.diff(self.moments) * 1e3",
        ("tests/training/test_train_function.py",),
    ),
    Fault(
        "spans end with the later one",
        "min(end, second[index, 1])",
        "max(end, second[index, 1])",
        ("tests/diagnosis/test_intervals.py",),
    ),
    Fault(
        "a wait is blamed twice",
        "        left = difference(left, worked)\n",
        "",
        (
            "tests/diagnosis/test_trace_breakdown.py::test_every_instant_of_a_wait_is_blamed_on_one_iterator",
        ),
    ),
    # What can be added
    Fault(
        "a source of image files is said to have none",
        '"image_table": SourceKind(has_files=True)',
        '"image_table": SourceKind()',
        ("tests/test_extension_points.py",),
    ),
    Fault(
        "an op of the registry is not registered",
        "@register class Cutout(Op):",
        "class Cutout(Op):",
        ("tests/test_extension_points.py",),
    ),
    # Diagnosis
    Fault(
        "batches by length are no batches",
        "isinstance(step, Gather | Batch | BucketBatch)",
        "isinstance(step, Gather | Batch)",
        RULES,
    ),
    Fault(
        "every batch of records is whole",
        "and step.whole_batches",
        "and step.batch_size",
        RULES,
    ),
    Fault(
        "the stream of each class fills a cache of its own",
        "if not context.plan.caches:",
        "if True:",
        ("tests/pipelines/test_dataset.py",),
    ),
    Fault(
        "a snapshot cuts numbers to whole ones",
        "if (dtype := inputs[0].dtype) != column.dtype:",
        "if (dtype := inputs[0].dtype) == 'none':",
        ("tests/pipelines/test_snapshots.py",),
    ),
    Fault(
        "labels are not compared with the manifest's",
        "if wrong.any():",
        "if False:",
        EQUALITY,
    ),
    Fault(
        "a group further up has no limit",
        "levels = (folder, *folder.parents)",
        "levels = (folder,)",
        ("tests/test_limits.py",),
    ),
    Fault(
        "memory is in MiB",
        "ru_maxrss * 1024 / 1e6",
        "ru_maxrss / 1024",
        GPUS,
    ),
    Fault(
        "what is worth a change is not",
        "self.step_share_pct(milliseconds) >= WORTH_PCT",
        "self.step_share_pct(milliseconds) <= WORTH_PCT",
        DIAGNOSIS,
    ),
    Fault(
        "a parallel map works on the training's own thread",
        "if threads == 1:",
        "if threads >= 1:",
        DIAGNOSIS,
    ),
    Fault(
        "what is left to AUTOTUNE runs on one thread",
        "return 1 if self.is_sequential else cores",
        "return cores if isinstance(self.setting, int) else 1",
        ("tests/pipelines/test_parallelism.py",),
    ),
    Fault(
        "an accelerator's input needs no cores",
        "slowest, load.work_ms / cores)",
        "slowest)",
        DIAGNOSIS,
    ),
    Fault(
        "the largest gain comes first whatever it asks for",
        "gain * TIE_FACTOR >= most",
        "gain >= most",
        DIAGNOSIS,
    ),
    Fault(
        "input and model share no cores",
        "1 / (1 / self.input_examples_per_s + 1 / self.model_examples_per_s)",
        "self.model_examples_per_s",
        DIAGNOSIS,
    ),
    Fault(
        "what was not measured meets no condition",
        "value is None or value != value",
        "value is None",
        DIAGNOSIS,
    ),
    # Training and checkpoints
    Fault("a checkpoint's files are not flushed", "_flush(path)", "pass", CHECKPOINTS),
    Fault(
        "the folder of checkpoints is not flushed",
        "_flush(folder.parent)",
        "pass",
        CHECKPOINTS,
    ),
    Fault(
        "the oldest goes before the newest is there for good",
        "_flush(self._folder)",
        "pass",
        CHECKPOINTS,
    ),
    Fault("only one checkpoint is kept", "MAX_TO_KEEP = 2", "MAX_TO_KEEP = 1", CHECKPOINTS),
    Fault(
        "the oldest checkpoint comes first",
        "sorted(found, reverse=True)",
        "sorted(found)",
        CHECKPOINTS,
    ),
    Fault(
        "a damaged state is resumed from",
        'content.pop("digest") != digest_json(content)',
        'not content.pop("digest")',
        CHECKPOINTS,
    ),
    Fault(
        "damaged variables are resumed from",
        "digest_file(folder / name) != digest",
        "not digest",
        CHECKPOINTS,
    ),
    Fault(
        "a checkpoint that does not fit leaves its values",
        "variable.assign(value)",
        "pass",
        CHECKPOINTS,
    ),
    Fault(
        "a checkpoint of other work is resumed from",
        'root / f"work-{digest_json(self._fingerprint)[:16]}"',
        'root / "work-0"',
        CHECKPOINTS,
    ),
    Fault(
        "other options of a model are the same work",
        "params.model.model_dump(),\n            *(",
        "*(",
        RESUME,
    ),
    Fault(
        "another version of Keras is the same work",
        "[keras.__version__, tf.__version__]",
        "[tf.__version__]",
        RESUME,
    ),
    Fault(
        "how often checkpoints are kept is other work",
        'exclude={"checkpoint_every"}',
        "exclude=set()",
        RESUME,
    ),
    Fault(
        "a resumed epoch begins with its first batch",
        "start.epoch * pipeline.steps_per_epoch + start.step",
        "start.epoch * pipeline.steps_per_epoch",
        STOPPING,
    ),
    Fault(
        "metrics of a resumed epoch begin at zero",
        "if self._metrics and resumed:",
        "if False:",
        STOPPING,
    ),
    Fault(
        "the optimizer begins anew",
        "*(variable for optimizer in optimizers for variable in optimizer.variables),",
        "",
        STOPPING,
    ),
    Fault(
        "callbacks forget what they knew",
        "load_state(self._others, self._others_state)",
        "pass",
        RESUME,
    ),
    Fault(
        "class weights weigh nothing",
        "inputs, labels, tf.gather(weights, labels)",
        "inputs, labels",
        ("tests/training/test_compiling.py",),
    ),
    Fault(
        "probabilities are taken for logits",
        '{"from_logits": not gives_probabilities(model)}',
        '{"from_logits": True}',
        ("tests/training/test_compiling.py",),
    ),
    Fault(
        "the train step of a model on the device is Keras' own",
        "return self.network.train_step(self._weigh(data) if self._weigh else data)",
        "return keras.Model.train_step(self.network, self._weigh(data) if self._weigh else data)",
        ("tests/training/test_compiling.py",),
    ),
    Fault(
        "frozen layers are trained",
        "layer.trainable = False",
        "pass",
        ("tests/training/test_fine_tuning.py",),
    ),
    Fault(
        "an epoch runs into the next one",
        "self._most if self._left >= self._most else 1",
        "self._most",
        (
            "tests/training/test_train_function.py::test_the_same_steps_losses_and_weights_whatever_the_number_per_execution[4-sizes1]",
        ),
    ),
    Fault(
        "that the best was chosen among many is forgotten",
        "largest = np.maximum(with_top.max(axis=1), with_base.max(axis=1))",
        "largest = with_base[:, -1]",
        ("tests/reporting/test_comparison_noise.py",),
    ),
    Fault(
        "a champion may be worse than the one before",
        "best.value) < -SIGNIFICANT_STDERRS",
        "best.value) > SIGNIFICANT_STDERRS",
        CHAMPION,
    ),
    Fault(
        "a result that is no number may become champion",
        "not math.isfinite(score.value)",
        "False",
        CHAMPION,
    ),
    Fault(
        "more error is better",
        'return self.metric == "accuracy"',
        'return self.metric != "accuracy"',
        CHAMPION,
    ),
    Fault(
        "a constant predicts the rarest class",
        "np.bincount(labels).max()",
        "np.bincount(labels).min()",
        CHAMPION,
    ),
    Fault(
        "a sketch forgets the labels",
        "digest_blake2b(digest.encode(), label.encode())",
        "digest_blake2b(digest.encode())",
        CHAMPION,
    ),
    # Staleness
    Fault(
        "imports of code are not followed", "pending += _imports(name, path)", "pass", CODE_IDENTITY
    ),
    Fault("packages of code are not followed", "pending += _parents(name)", "pass", CODE_IDENTITY),
    Fault("docstrings count as code", "node.body = node.body[1:]", "pass", CODE_IDENTITY),
    Fault(
        "another version than the locked one is taken",
        "if locked and version not in locked:",
        "if False:",
        ("tests/test_libraries.py",),
    ),
    # Trained models in use
    Fault(
        "a model is used with ops that have changed since its training",
        "if op is None or digest_json(op.identity) != stored.identity:",
        "if op is None:",
        PREDICT,
    ),
    Fault(
        "a model is given the tokenizer of today's data",
        "{SPEC: _adapter().dump_json(spec, indent=1)}\n    for op in ops:",
        "{SPEC: _adapter().dump_json(spec, indent=1)}\n    for op in ():",
        PREDICT,
    ),
    Fault(
        "the last window of a series ends before its last step",
        "range(0 if wanted.every_window else steps - length, steps",
        "range(0 if wanted.every_window else steps - length - 1, steps",
        PREDICT,
    ),
    Fault(
        "color images are given to a model of grey ones",
        "if channels > schema.channels:",
        "if False:",
        PREDICT,
    ),
    Fault(
        "the best examples are shown as the worst",
        'order = np.argsort(-both["losses"], kind="stable")[:MOST_WORST]',
        'order = np.argsort(both["losses"], kind="stable")[:MOST_WORST]',
        PREDICT,
    ),
    Fault(
        "the confused classes are those that are never confused",
        'np.argsort(-confused, kind="stable")',
        'np.argsort(confused, kind="stable")',
        ("tests/measurement/test_evaluation.py",),
    ),
    Fault(
        "a softmax is taken twice",
        "outputs if probabilities else tf.nn.softmax(outputs)",
        "tf.nn.softmax(outputs)",
        ("tests/training/test_serving.py",),
    ),
    # Runs
    Fault(
        "a removed lock file is taken for the lock",
        "if _is_current(descriptor, path):",
        "if True:",
        LOCKS,
    ),
    Fault(
        "a process id that is used again holds a lock", "and words.endswith(arguments)", "", LOCKS
    ),
    Fault(
        "two runs use a workspace at once",
        'f"workspace.{name}"',
        'f"workspace.{name}.{os.urandom(4).hex()}"',
        WORKSPACES,
    ),
    Fault(
        "a sweep takes a worktree that is in use",
        "if held is None or not mark.exists()",
        "if not mark.exists()",
        WORKSPACES,
    ),
    Fault(
        "a sweep takes what a run could go on from",
        "or _idle_s(root) < SWEPT_AFTER_S",
        "or _idle_s(root) < 0",
        WORKSPACES,
    ),
    Fault(
        "a field that was left as it is is a change",
        "for name, value in given.items() if value != present[name]",
        "for name, value in given.items() if value != present",
        RESOLUTION,
    ),
    Fault(
        "what was resolved serves another request",
        "if shared and shared.request == request:",
        "if shared:",
        RESOLUTION,
    ),
    Fault(
        "hooks of the project run",
        'f"core.hooksPath={os.devnull}"',
        '"core.fsmonitor=false"',
        WORKSPACES,
    ),
    Fault(
        "hidden files may be read", 'any(part.startswith(".") for way', "any(False for way", REACH
    ),
    Fault("the program's own functions may be called", " or parts[0] in OUR_PACKAGES", "", REACH),
    Fault("every dispatcher may be joined", "if address not in granted:", "if False:", REACH),
    Fault(
        "every folder may be read",
        "path.is_relative_to(root.resolve())), None)",
        "path), None)",
        REACH,
    ),
    Fault("servers of another user are trusted", ".st_uid != os.geteuid()", ".st_uid < 0", ACCESS),
    Fault(
        "the password may be read by all", "os.O_NOFOLLOW, 0o600)", "os.O_NOFOLLOW, 0o644)", ACCESS
    ),
    Fault(
        "the password is drawn again at each start",
        "write_private(file, json.dumps(asdict(keys)))",
        "pass",
        ACCESS,
    ),
    Fault(
        "the Prefect server asks for no password",
        'return {"PREFECT_SERVER_API_AUTH_STRING": f"{USER}:{self.keys.password}"}',
        "return {}",
        ACCESS,
    ),
    Fault("a shell runs what is in a value", "shlex.quote(value)", "value", ACCESS),
    Fault(
        "pages of other sites may send requests",
        'site in ("cross-site", "same-site")',
        'site in ("cross-site",)',
        ("tests/flows/test_tracking_server.py",),
    ),
    Fault(
        "an overdue stage goes on",
        "timed_out.set()\n        process.terminate()",
        "timed_out.set()",
        ("tests/flows/test_stages.py",),
    ),
    # Text
    Fault(
        "a byte of a text counts as padding",
        "tf.cast(values, tf.int32) + 1, tf.strings.length(texts)",
        "tf.cast(values, tf.int32), tf.strings.length(texts)",
        (TEXT + "test_bytes_are_tokens_from_one_on",),
    ),
    Fault(
        "the vocabulary has no number for the last byte",
        "vocabulary=1 + BYTES",
        "vocabulary=BYTES",
        (TEXT + "test_bytes_are_tokens_from_one_on",),
    ),
    Fault(
        "the first piece of a SentencePiece model counts as padding",
        "shift = int(processor.pad_id() != 0)",
        "shift = 0",
        (GIVEN + "test_a_sentencepiece_model_without_padding_is_counted_from_one",),
    ),
    Fault(
        "a SentencePiece model is lost when a seed is set",
        "sentencepiece_op(model=content, shared_name=digest_blake2b(content))",
        "sentencepiece_op(model=content)",
        (GIVEN + "test_a_tokenizer_that_is_open_outlives_a_new_seed",),
    ),
    Fault(
        "the vocabulary of a shifted model lacks its last piece",
        "vocabulary=processor.vocab_size() + shift",
        "vocabulary=processor.vocab_size()",
        (GIVEN + "test_a_sentencepiece_model_without_padding_is_counted_from_one",),
    ),
    Fault(
        "the first word of a vocabulary counts as padding",
        "shift = int(words[0] != PADDING)",
        "shift = 0",
        (TEXT + "test_a_vocabulary_without_padding_is_counted_from_one",),
    ),
    Fault(
        "a vocabulary may hold a word twice",
        "UNKNOWN not in words or len(set(words)) < len(words)",
        "UNKNOWN not in words",
        (GIVEN + "test_a_vocabulary_that_cannot_be_numbered_is_refused",),
    ),
    Fault(
        "a vocabulary of Windows has words that end with a carriage return",
        'content.decode().replace("\\r\\n", "\\n")',
        "content.decode()",
        (TEXT + "test_a_vocabulary_without_padding_is_counted_from_one",),
    ),
    Fault(
        "numbers of tokens are stored in a type that cannot hold them",
        "_NARROW = 1 << 16",
        "_NARROW = 1 << 17",
        FITTING,
    ),
    Fault(
        "the sample of texts has no end",
        "left -= len(text)",
        "left -= 0",
        FITTING,
    ),
    Fault(
        "the last text of a sample is taken whole",
        'yield text[:left].decode(errors="ignore")',
        'yield text.decode(errors="ignore")',
        FITTING,
    ),
    Fault(
        "of a long line only the beginning is fitted",
        "range(0, len(line), PIECE)",
        "range(0, min(len(line), 1), PIECE)",
        FITTING,
    ),
    Fault(
        "WordPiece is fitted on the rarest words",
        "key=lambda item: (-item[1], item[0])",
        "key=lambda item: (item[1], item[0])",
        FITTING,
    ),
    Fault(
        "a tokenizer depends on the cores of its machine",
        "num_threads=_THREADS",
        'num_threads=len(__import__("os").sched_getaffinity(0))',
        (
            "tests/pipelines/test_tokenizer_fitting.py"
            "::test_a_tokenizer_has_the_same_bytes_in_another_process_with_other_cores",
        ),
    ),
    Fault(
        "another given tokenizer is the same preprocessing",
        '{**super().identity, "model": content}',
        '{**super().identity, "model": ""}',
        (TEXT + "test_a_given_tokenizer_is_known_by_its_content[wordpiece]",),
    ),
    Fault(
        "a tokenizer that was changed in the snapshot is used",
        "if not path.exists() or digest_file(path) != digest:",
        "if not path.exists():",
        (TEXT + "test_a_given_tokenizer_is_known_by_its_content[wordpiece]",),
    ),
    Fault(
        "of a batch the first texts are kept, not their first tokens",
        "else tokens[:, : op.tokens]",
        "else tokens[: op.tokens]",
        (TEXT + "test_truncate_keeps_the_first_tokens_of_one_text_and_of_each_of_a_batch",),
    ),
    Fault(
        "a byte order mark is part of a document",
        'text = text.removeprefix("\\ufeff")',
        "pass",
        DOCUMENTS,
    ),
    Fault(
        "a document may lie outside of the data root",
        "if not target.is_relative_to(root.resolve()):",
        "if False:",
        DOCUMENTS,
    ),
    Fault(
        "a pipe is a document",
        'raise RejectedText("is no regular file")',
        "pass",
        DOCUMENTS,
    ),
    Fault(
        "a document of exactly the largest size is rejected",
        "if size > max_bytes:",
        "if size >= max_bytes:",
        DOCUMENTS,
    ),
    Fault(
        "where a document begins is counted in characters",
        "end += len(content)",
        "end += len(content.decode())",
        DOCUMENTS,
    ),
    Fault(
        "a line of exactly the largest size is followed by an empty one",
        "file.readline(max_bytes + 1)",
        "file.readline(max_bytes)",
        DOCUMENTS,
    ),
    Fault(
        "a byte order mark makes quotes a part of the first name",
        '"utf-8-sig" if utf8 else settings.encoding',
        "settings.encoding",
        TABLES,
    ),
    Fault(
        "a label of 1 and 1.0 has two classes",
        "and spelled.setdefault(value, text) != text:",
        "and False:",
        TABLES,
    ),
    Fault(
        "bytes that are not of the encoding are replaced in tables",
        'open_delimited(path, settings, errors="surrogateescape")',
        'open_delimited(path, settings, errors="replace")',
        DOCUMENTS,
    ),
    Fault("a stray quote joins rows", "if len(record.text) > 1:", "if False:", TABLES),
    Fault("a stray quote joins texts", "if line is not None:", "if False:", TABLES),
    Fault(
        "rows of other fields than the header are read",
        "count = self._trailing + self._others",
        "count = 0",
        TABLES,
    ),
    Fault(
        "blanks make another class",
        "stripped = pc.utf8_trim_whitespace(cells)",
        "stripped = cells",
        TABLES,
    ),
    Fault(
        "one word makes categories of numbers", "2 * numbers > filled", "numbers == filled", TABLES
    ),
    Fault(
        "medians are those of all splits",
        "known = column[train][~empty[train]]",
        "known = column[~empty]",
        TABLES,
    ),
    Fault("a decimal comma is no number", "if not commas:", "if True:", TABLES),
    Fault(
        "dates become categories",
        "if _share(table, name, _DATE) > 0.5:",
        "if _share(table, name, _DATE) > 2:",
        TABLES,
    ),
    Fault(
        "a long field makes a table unreadable",
        "csv.field_size_limit(sys.maxsize)",
        "csv.field_size_limit(1 << 17)",
        DOCUMENTS,
    ),
    Fault(
        "the split that a Parquet table names is not read",
        'needed += ["split"] if "split" in names else []',
        "pass",
        DOCUMENTS,
    ),
    # Shards of others
    Fault(
        "the first part of a path names its split",
        'for part in reversed(name.lower().split("/")):',
        'for part in name.lower().split("/"):',
        EXTERNAL,
    ),
    Fault(
        "hidden files are shards",
        "path.is_file() and not hidden",
        "path.is_file()",
        EXTERNAL,
    ),
    Fault(
        "a label of the class behind the last is a shift of all",
        "count in numbers and 0 not in numbers",
        "count in numbers",
        EXTERNAL,
    ),
    Fault(
        "rejected labels shift the values of the others",
        "values=np.stack([values[number] for number in usable])",
        "values=np.stack(values[: len(usable)])",
        EXTERNAL,
    ),
    Fault(
        "rejected labels shift the splits of the others",
        "splits=[entries[number][0].split for number in usable]",
        "splits=[entries[number][0].split for number in range(len(usable))]",
        EXTERNAL,
    ),
    Fault(
        "a number to predict may be infinite",
        'feature.kind == "float" and not np.isfinite(values[0])',
        "False",
        EXTERNAL,
    ),
    Fault(
        "an image is looked for from the beginning of its shard",
        "place=(offset + start, offset + stop)",
        "place=(start, stop)",
        EXTERNAL,
    ),
    Fault(
        "a record of an external shard with a wrong checksum is taken",
        "raise _Unusable(problem)",
        "pass",
        EXTERNAL,
    ),
    Fault(
        "a split of any name is trained on",
        'kind = SPLIT_WORDS.get(split["name"])',
        'kind = SPLIT_WORDS.get(split["name"], "train")',
        EXTERNAL,
    ),
    Fault(
        "shards have the names that TFDS usually gives them",
        'split.get("filepathTemplate") or DEFAULT_TEMPLATE',
        "DEFAULT_TEMPLATE",
        EXTERNAL,
    ),
    Fault(
        "features of an inner dict lose its name",
        'collect(inner, f"{prefix}{name}/")',
        'collect(inner, f"{prefix}")',
        EXTERNAL,
    ),
    Fault(
        "names of another number of classes are taken",
        "if names and len(names) != count:",
        "if False:",
        EXTERNAL,
    ),
    Fault(
        "a number of ten bytes is refused",
        "_LONGEST_VARINT = 70",
        "_LONGEST_VARINT = 63",
        EXAMPLES,
    ),
    Fault(
        "a field may reach beyond its message",
        "if at > end:",
        "if at > len(record):",
        EXAMPLES,
    ),
    Fault(
        "the last of packed numbers may be cut off",
        "not len(ends) or ends[-1] != len(groups) - 1",
        "not len(ends)",
        EXAMPLES,
    ),
    Fault(
        "the index of another shard is taken",
        "if digest_file(index) != shard.offsets_digest:",
        "if False:",
        OFFSETS,
    ),
    Fault(
        "the first record of a shard is looked for in the one before",
        'np.searchsorted(self.firsts, rows, side="right")',
        'np.searchsorted(self.firsts, rows, side="left")',
        OFFSETS,
    ),
    Fault(
        "a repaired shard needs an index",
        "if shard.repaired:\n        edges, problem",
        "if False:\n        edges, problem",
        OFFSETS,
    ),
    # Boxes and RandAugment
    Fault(
        "the central crop of an evaluation is rounded down",
        "(2 * shortest * (op.height, op.width) + op.shorter)",
        "(2 * shortest * (op.height, op.width))",
        CROPPING,
    ),
    Fault(
        "a smaller image lies a pixel off the center",
        "tf.where(room < 0, -(-room // 2), room // 2)",
        "room // 2",
        CROPPING,
    ),
    Fault(
        "top and left are one draw",
        "_place(draw.uniform(key, axis), room[..., axis])",
        "_place(draw.uniform(key, 0), room[..., axis])",
        PINNED,
    ),
    Fault(
        "a picture turns about a point half a pixel off",
        "center = np.asarray([(wide - 1) / 2, (tall - 1) / 2])",
        "center = np.asarray([wide / 2, tall / 2])",
        RANDAUGMENT,
    ),
    Fault(
        "only the first of an image's changes is made",
        "zip(which, reverse, strict=True)",
        "zip(which[:1], reverse[:1], strict=True)",
        RANDAUGMENT,
    ),
    Fault(
        "pictures move to the side by a share of their height",
        "_shift(image, by * image.shape[1], 0)",
        "_shift(image, by * image.shape[0], 0)",
        RANDAUGMENT,
    ),
    Fault(
        "contrast changes the mean",
        "mean = round(float(_luma(image)[..., 0].mean()))",
        "mean = 0",
        RANDAUGMENT,
    ),
    Fault(
        "the threshold itself is not solarized",
        "inverted = levels >= threshold",
        "inverted = levels > threshold",
        RANDAUGMENT,
    ),
    Fault(
        "channels are stretched together",
        "(of(image, axis=(0, 1)).astype(np.float32) for of in (np.min, np.max))",
        "(np.float32(of(image)) for of in (np.min, np.max))",
        RANDAUGMENT,
    ),
    Fault(
        "every channel becomes the first, equalized",
        "cv2.equalizeHist(np.ascontiguousarray(image[..., channel]))",
        "cv2.equalizeHist(np.ascontiguousarray(image[..., 0]))",
        RANDAUGMENT,
    ),
)
