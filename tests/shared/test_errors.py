"""What a command says of an error that is neither a bug nor a `UserError`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from throughline.shared.failures import describe_failure

pytestmark = pytest.mark.integration

# As a GPU says it.
ON_A_GPU = """Graph execution error:

OOM when allocating tensor with shape[128,112,112,96] and type half on \
/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc
\t [[{{node mobilenetv2/block_1_expand/convolution}}]]
 [Op:__inference_run_24191]"""
IN_XLA = "Out of memory while trying to allocate 98765432100 bytes. [Op:__inference_run_24191]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ON_A_GPU, "GPU:0 has no memory left for a tensor of shape[128,112,112,96] and type half"),
        (ON_A_GPU, "of mobilenetv2/block_1_expand/convolution"),
        (ON_A_GPU, "other programs on the same GPU"),
        (ON_A_GPU.replace("GPU:0", "CPU:0"), "CPU:0 has no memory left"),
        (IN_XLA, "the device has no memory left for 98,765,432,100 bytes. Lower batch_size"),
    ],
)
def test_memory_that_a_device_lacks_is_no_bug(text, said):
    failure = describe_failure(tf.errors.ResourceExhaustedError(None, None, text))
    assert not failure.traceback
    assert str(failure).startswith("OutOfMemory: ") and said in failure.message
    assert ("GPU" in failure.message) == ("CPU:0" not in text)


def test_an_array_that_has_no_room_is_no_bug():
    with pytest.raises(MemoryError) as raised:
        np.ones(1 << 46)
    failure = describe_failure(raised.value)
    assert failure.kind == "OutOfMemory" and "512. TiB" in failure.message
    assert not failure.traceback


@pytest.mark.parametrize("text", ["received message larger than max", "too many open streams"])
def test_what_else_is_exhausted_keeps_its_traceback(text):
    assert describe_failure(tf.errors.ResourceExhaustedError(None, None, text)).traceback


def raise_words(_):
    raise ValueError("my words: of this")


def raise_lines(_):
    raise RuntimeError("one\ntwo")


def raise_within_numpy(_):
    np.zeros(3).reshape(2)


@pytest.mark.parametrize(
    ("function", "kind", "words", "line"),
    [
        (raise_words, "ValueError", "my words: of this", 1),
        (raise_lines, "RuntimeError", "one\ntwo", 1),
        (raise_within_numpy, "ValueError", "cannot reshape array of size 3 into shape (2,)", 1),
    ],
)
@pytest.mark.parametrize("call", [tf.numpy_function, tf.py_function])
def test_what_own_code_raises_within_tensorflow_is_said_last_with_its_line(
    call, function, kind, words, line
):
    batches = tf.data.Dataset.range(3).map(lambda x: call(function, [x], tf.int64))
    with pytest.raises(tf.errors.OpError) as raised:
        list(batches)
    failure = describe_failure(raised.value)
    place = f"{__file__}:{function.__code__.co_firstlineno + line}"
    assert (failure.kind, failure.message) == (kind, f"{words}: {place}")
    assert failure.traceback.endswith(f"\n{failure}\n")
    assert describe_failure(raised.value) == failure
