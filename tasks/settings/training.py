"""The model, its training and the measuring: sections `model`, `train` and `measure` of
params.yaml.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tasks.settings.base import Settings

_PERIOD = r"[1-9][0-9]* (epochs?|steps?)"


class ModelSettings(Settings):
    """What is trained."""

    name: str = Field(
        default="auto",
        description=(
            "auto (fits the data: small_cnn, mlp or, for text, text_classifier; with window.tokens"
            " transformer_decoder), one of these, transformer_encoder (text), emulated"
            " (no accelerator: `options: {step_ms: 58}`),"
            " a keras.applications name, or package.module:function of your own"
        ),
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments for the builder"
    )


class TrainSettings(Settings):
    """How it is trained."""

    epochs: int = Field(default=2, ge=1, description="passes over the training split")
    learning_rate: float = Field(default=1e-3, gt=0, description="initial rate of Adam")
    schedule: Literal["constant", "cosine"] = Field(
        default="cosine", description="constant, or cosine decay to zero over all epochs"
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="of weights, order and augmentation")
    deterministic: bool = Field(
        default=False, description="bit-for-bit repeatable kernels; slower on a GPU"
    )
    mixed_precision: bool = Field(
        default=False, description="compute in float16/bfloat16 where the accelerator gains from it"
    )
    jit_compile: bool = Field(
        default=False, description="compile the train step with XLA; pays on GPUs, rarely on CPUs"
    )
    steps_per_execution: int = Field(
        default=1, ge=1, description="train steps per call into the runtime"
    )
    checkpoint_every: Annotated[str, Field(pattern=f"^{_PERIOD}$")] = Field(
        default="1 epoch",
        description=(
            "`N epochs` or `N steps` between checkpoints that an interrupted training goes on from;"
            " within an epoch only configurations that can seek (read: snapshot)"
        ),
    )

    @property
    def checkpoint_period(self) -> tuple[int, Literal["epochs", "steps"]]:
        """`checkpoint_every` as a number and its unit."""
        count, unit = self.checkpoint_every.split()
        return int(count), "steps" if unit.startswith("step") else "epochs"


class MeasureSettings(Settings):
    """How throughput is measured and traced."""

    input_max_seconds: float = Field(
        default=2.0,
        gt=0,
        description=(
            "build: time limit for a pass over the input alone [s]; none where it fills a cache"
        ),
    )
    input_passes: int = Field(
        default=3,
        ge=1,
        le=50,
        description="build: epochs drained for the input's throughput; the median counts",
    )
    rounds: int = Field(
        default=9,
        ge=1,
        le=50,
        description=(
            "profile: at most this number of rounds of the model alone, training from full"
            " buffers, and training from empty ones; fewer where the interval is precise"
        ),
    )
    stall_max_seconds: float = Field(
        default=30.0,
        gt=0,
        description=(
            "profile: time limit for these rounds [s]; the first three always run. If the time"
            " ends without a decision, the verdict is undecided"
        ),
    )
    warm_up_steps: int = Field(
        default=10,
        ge=1,
        description="profile: train steps before its timing begins, so that start-up stays out",
    )
    trace_steps: int = Field(default=20, ge=1, le=1000, description="steps in the traced window")
