"""What is refused before several processes train, and what each of them does by itself."""

import socket
import sys
from contextlib import nullcontext
from dataclasses import replace

import keras
import numpy as np
import pytest

from tasks.train import describe_idle_gpus
from tests.support.trainings import params_of
from throughline.assembly.inputs import open_input_pipeline, open_inputs, training_worker
from throughline.assembly.processes import check_processes
from throughline.plan.training_workers import TF_CONFIG, TrainingWorker, name_gpus
from throughline.settings import BatchSettings
from throughline.shared.errors import ImpossiblePlan, ProcessLost, UnknownModel
from throughline.training import replicated_model
from throughline.training.deadline import answers
from throughline.training.processes import LOST_ANOTHER, run_one_of_several, run_processes
from throughline.training.replicas import Replicas, check_port

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("processes", "train", "pipeline", "gpus", "said"),
    [
        (3, {}, {}, 0, "25 cannot be shared equally by 3 processes"),
        (5, {"batch_multiple": 2}, {}, 0, "use a multiple of 5"),
        (5, {}, {"batch": BatchSettings(pack=64)}, 0, r"batch\.pack: slices of 5 processes"),
        (5, {"jit_compile": True}, {}, 0, "jit_compile: without GPUs, XLA"),
        (5, {"jit_compile": True}, {}, 5, None),
        (5, {}, {}, 2, "need a GPU each, and 2 are visible"),
    ],
)
def test_what_processes_cannot_share_is_refused(processes, train, pipeline, gpus, said):
    params = params_of()
    config = params.pipelines["optimized"].model_copy(update=pipeline)
    train = params.train.model_copy(update={"processes": processes, **train})
    params = replace(params, pipelines={"optimized": config}, train=train)
    with pytest.raises(ImpossiblePlan, match=said) if said else nullcontext():
        check_processes(params, "optimized", training_worker(params), gpus=gpus)


def test_each_process_gets_a_gpu_that_is_visible_and_those_that_tensorflow_lacks_are_said():
    assert describe_idle_gpus(visible=0, used=0) is None
    assert describe_idle_gpus(visible=2, used=1) is None
    said = describe_idle_gpus(visible=2, used=0)
    assert said and "shows 2 GPUs" in said and "`make setup GPU=1`" in said
    assert name_gpus({}, 2) == ["0", "1"]
    assert name_gpus({"CUDA_VISIBLE_DEVICES": "GPU-x,3"}, 2) == ["GPU-x", "3"]


def test_a_stream_is_refused(layout):
    params = params_of("train.processes=5")
    data = open_inputs(params, layout)
    with pytest.raises(ImpossiblePlan, match="batches of a stream cannot be shared"):
        open_input_pipeline(params, "naive", data, split="train", purpose="train")


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert answers(address)
        with pytest.raises(ImpossiblePlan, match=rf"port {taken.getsockname()[1]} of .* cannot"):
            check_port(address)
    assert not answers(address)
    check_port(address)


def test_random_layers_of_each_process_have_a_state_of_their_own_that_follows_from_the_chiefs():
    def states(index):
        keras.utils.set_random_seed(1)
        inner = keras.Sequential([keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.1)])
        model = keras.Sequential([keras.Input((4,)), inner, keras.layers.Dropout(0.5, seed=3)])
        random = [one for one in model.variables if one.name.startswith("seed")]
        before = [np.asarray(one).tolist() for one in random]
        worker = TrainingWorker(index=index, count=3)
        replicated_model.make_random_layers_differ(Replicas(worker=worker), model)
        return before, [np.asarray(one).tolist() for one in random]

    before, chief = states(0)
    assert len(chief) == 3 and chief == before
    (_, second), (_, third) = states(1), states(2)
    assert second == states(1)[1]
    for each in zip(chief, second, third, strict=True):
        assert len({*map(str, each)}) == 3


def test_normalization_is_synchronized_in_models_that_are_layers():
    inner = keras.Sequential([keras.layers.BatchNormalization(name="inner")])
    model = keras.Sequential([keras.Input((4,)), inner, keras.layers.BatchNormalization()])
    replicated_model.synchronize_normalization(model)
    assert inner.layers[0].synchronized and model.layers[1].synchronized


def mean_of_all(labels, outputs):
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, outputs))


SGD = keras.optimizers.SGD
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy


@pytest.mark.parametrize(
    ("optimizer", "loss", "said"),
    [
        (keras.optimizers.AdamW(global_clipnorm=1.0), "mse", "global_clipnorm clips the gradient"),
        (keras.optimizers.LossScaleOptimizer(SGD(clipvalue=1)), "mse", "clipval"),
        (SGD(gradient_accumulation_steps=4), "mse", "accumulation_steps synchronizes"),
        (SGD(use_ema=True, ema_overwrite_frequency=9), "mse", "overwrite_frequency"),
        ("sgd", CROSS_ENTROPY(ignore_class=3), "ignore_class divides it by the counted"),
        ("sgd", CROSS_ENTROPY(reduction="mean_with_sample_weight"), "by the weights of each slice"),
        ("sgd", mean_of_all, "mean_of_all .* it is one number per slice"),
        ("sgd", keras.losses.Dice(), "dice .* one number"),
        ("sgd", CROSS_ENTROPY(), None),
        ("adam", keras.losses.sparse_categorical_crossentropy, None),
        ("adam", None, None),
    ],
)
def test_what_is_computed_of_slices_instead_of_the_batch_is_refused(optimizer, loss, said):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(optimizer, loss)
    with pytest.raises(UnknownModel, match=said) if said else nullcontext():
        replicated_model.check_gradients_add_up(model)


def test_a_mask_that_reaches_the_loss_is_refused():
    model = keras.Sequential([keras.Input((None,)), keras.layers.Embedding(5, 4, mask_zero=True)])
    model.compile("sgd", "mse")
    with pytest.raises(UnknownModel, match="the model's outputs have a mask"):
        replicated_model.check_gradients_add_up(model)
    model.add(keras.layers.GlobalAveragePooling1D())
    model.compile("sgd", "mse")
    replicated_model.check_gradients_add_up(model)


def test_a_wrong_tf_config_is_left_to_the_stage_to_say(monkeypatch):
    def refuse():
        raise SystemExit(2)

    monkeypatch.setenv(TF_CONFIG, "{")
    with pytest.raises(SystemExit):
        run_one_of_several(refuse)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("sys.exit(255)", "process 1 of 2 ended with code 255"),
        ("os.kill(os.getpid(), 9)", "process 1 of 2 was killed by SIGKILL"),
        ("raise RuntimeError('a bug')", "process 1 of 2 ended with code 1"),
        ("sys.exit(75)", "process 1 of 2 has waited too long for the others"),
    ],
)
def test_the_process_that_ends_first_is_named(ends, said):
    code = f"""import json, os, sys
if json.loads(os.environ["TF_CONFIG"])["task"]["index"]:
    {ends}
sys.exit({LOST_ANOTHER})
"""
    with pytest.raises(ProcessLost, match=said):
        run_processes([sys.executable, "-c", code], 2)
