"""Model, training and measuring: sections `model`, `train` and `measure` of params.yaml."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from throughline.settings.base import OrMapping, Settings, WeightByClass

_PERIOD = r"[1-9][0-9]* (epochs?|steps?)"
_OWN = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
EMULATED_MODEL = "emulated"  # a model that waits as an accelerator would
SCHEDULES = ("constant", "linear", "cosine")


def _check_single(named: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    if len(named) != 1:
        raise ValueError("expected one name with its arguments, such as {adamw: {beta_1: 0.8}}")
    return named


# A name or an import path, perhaps with arguments: {focal: {gamma: 2}}.
NamedObject = OrMapping[str, Annotated[dict[str, dict[str, Any]], AfterValidator(_check_single)]]
ClassWeights = OrMapping[Literal["none", "auto"], WeightByClass]


class ModelSettings(Settings):
    """The model to train."""

    name: str = "auto"
    """auto (fits the data: small_cnn, mlp or, for text, text_classifier; with window.tokens
    transformer_decoder), one of these, transformer_encoder (text), emulated (waits as an
    accelerator would: `options: {step_ms: 58}`), a keras.applications name, or
    package.module:function of your own
    """
    options: dict[str, Any] = Field(default_factory=dict)
    """keyword arguments for the builder"""
    from_file: str = Field(default="", alias="from")
    """fine-tuning: a .keras file, of this program or of others, whose network is trained further;
    its last layer is replaced if the number of outputs differs
    """
    weights: str = ""
    """a file of weights (.weights.h5, .keras) for the model of `name`, layer by layer; a last layer
    of another shape keeps its initial values
    """
    freeze: list[str] = Field(default=[])
    """layers that are not trained, by name, with * and ?, also within a model that is a layer;
    `all_but_last` for all but the last one
    """


class EarlyStoppingSettings(Settings):
    """The conditions on which a training ends before its last epoch."""

    monitor: str = "val_loss"
    """loss or the name of a metric; with val_ before it, that of validation"""
    patience: int = Field(default=3, ge=1)
    """epochs without improvement that end the training"""
    min_delta: float = Field(default=0.0, ge=0)
    """the least that counts as improvement"""
    mode: Literal["auto", "min", "max"] = "auto"
    """whether more or less is better; auto: as Keras decides by the metric"""
    restore_best: bool = True
    """keep the weights of the best epoch instead of the last one's"""


class TrainSettings(Settings):
    """Epochs, optimizer, loss, seed, checkpoints and processes of the training."""

    epochs: int = Field(default=2, ge=1)
    """passes over the training split"""
    learning_rate: float = Field(default=1e-3, gt=0)
    """the optimizer's highest learning rate"""
    schedule: Annotated[str, Field(pattern=f"^({'|'.join(SCHEDULES)}|{_OWN})$")] = "cosine"
    """constant, linear or cosine decay to zero over all epochs, or module:function of your own,
    from (learning_rate, steps) to a Keras schedule
    """
    warm_up_epochs: float = Field(default=0.0, ge=0)
    """epochs in which the rate first rises linearly from zero"""
    optimizer: NamedObject = "adam"
    """a Keras optimizer, also with arguments: {adamw: {weight_decay: 1e-4}}; or module:function of
    your own that takes learning_rate
    """

    @field_validator("optimizer")
    @classmethod
    def _leaves_the_rate_to_its_key(cls, optimizer: NamedObject) -> NamedObject:
        given = {} if isinstance(optimizer, str) else next(iter(optimizer.values()))
        if "learning_rate" in given:
            raise ValueError(
                "the rate has a key of its own, train.learning_rate, which the schedule and the"
                " warm-up follow; leave learning_rate out here"
            )
        return optimizer

    loss: NamedObject = "auto"
    """auto (cross-entropy of classes, squared error of numbers; with several targets, each in units
    of its standard deviation), a Keras loss, or module:name of your own
    """
    metrics: list[NamedObject] = Field(default=["auto"])
    """auto (accuracy of classes, mae of numbers), Keras metrics, or module:name"""
    class_weights: ClassWeights = "none"
    """weight of an example in the loss by its class: auto (the rarer, the heavier), or a weight per
    class name; a class that is left out has 1
    """
    callbacks: list[Annotated[str, Field(pattern=f"^{_OWN}$")]] = Field(default=[])
    """module:name of your own: Keras callbacks, or functions that return one"""
    early_stopping: EarlyStoppingSettings | None = None
    """end early; absent: all epochs are trained"""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """random seed of weights, order and augmentation"""
    deterministic: bool = False
    """bit-for-bit repeatable kernels; slower on a GPU"""
    mixed_precision: bool = False
    """compute in bfloat16, weights stay float32; GPUs before NVIDIA's Ampere gain nothing"""
    jit_compile: bool = False
    """compile the train step with XLA; pays on GPUs, rarely on CPUs"""
    steps_per_execution: int = Field(default=1, ge=1)
    """train steps per call into the runtime"""
    checkpoint_every: Annotated[str, Field(pattern=f"^{_PERIOD}$")] = "1 epoch"
    """`N epochs` or `N steps` between checkpoints, from which an interrupted training continues;
    steps for configurations that can seek (read: snapshot or indexed_shards), else each epoch
    """

    processes: Literal["auto"] | Annotated[int, Field(ge=1)] = 1
    """processes that train together, one per device, each on its slice of every batch; auto: the
    workers of TF_CONFIG, else one for each GPU that is visible
    """
    batch_multiple: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """the last batch of an epoch is cut to a multiple of this size; auto: the number of processes.
    Trainings with the same multiple have the same batches, whatever their number of processes
    """
    start_timeout_s: float = Field(default=600.0, gt=0)
    """several processes: time limit until all are there, and for a step that builds a graph [s]"""
    step_timeout_s: float = Field(default=600.0, gt=0)
    """several processes: time limit for a step and the callbacks after it [s]"""

    @property
    def checkpoint_period(self) -> tuple[int, Literal["epochs", "steps"]]:
        """`checkpoint_every` as a number and its unit."""
        count, unit = self.checkpoint_every.split()
        return int(count), "steps" if unit.startswith("step") else "epochs"


class MeasureSettings(Settings):
    """Settings of the trace and the race of configurations."""

    seconds: float = Field(default=60.0, gt=0)
    """race: time limit for all configurations together, without opening them [s]; the race ends
    earlier once every verdict and every place is decided
    """
    trace_steps: int = Field(default=20, ge=1, le=1000)
    """profile: steps in the traced window"""
