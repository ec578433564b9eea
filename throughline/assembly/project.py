"""A project's data, input pipelines and model for custom training loops (docs/training.md)."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from throughline.assembly.inputs import Purpose, open_input_pipeline, open_inputs
from throughline.assembly.model import build_models_for
from throughline.config.params import check_pipelines_exist, load_params
from throughline.config.params_file import PARAMS_FILE
from throughline.models.builders import Models
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.plan.training_workers import training_worker_from_tf_config
from throughline.settings import PipelineConfig
from throughline.shared.errors import ImpossiblePlan
from throughline.shared.layout import Layout
from throughline.training.compiling import compile_model


class Project:
    """The project in `root`, with stages up to `snapshot` done; `overrides` are those of --set.

    Raises:
      InvalidParams: params.yaml or an override is wrong.
    """

    def __init__(self, root: Path = Path(), overrides: Sequence[str] = ()) -> None:
        params = load_params(root / PARAMS_FILE, overrides=overrides)
        # A custom loop runs in as many processes as TF_CONFIG says, and starts no others.
        processes = training_worker_from_tf_config(os.environ).count
        train = params.train.model_copy(update={"processes": processes})
        self.params = replace(params, train=train)
        self._layout = Layout(root)

    @cached_property
    def data(self) -> PreparedData:
        """Shards and snapshot, checked to belong to the parameters.

        Raises:
          MissingInput, StaleSnapshot, CorruptShard, CorruptColumn: Run `dvc repro snapshot`.
        """
        return open_inputs(self.params, self._layout)

    def open_input_pipeline(
        self, name: str, *, split: str = "train", purpose: Purpose = "train", **changes: Any
    ) -> InputPipeline:
        """Open the input pipeline of configuration `name`, with `changes` to its fields.

        With another purpose than `train`, it reads in storage order and without random ops.

        Raises:
          UnknownPipeline: There is no such configuration.
          ValidationError: A changed field does not exist, or its value is wrong.
          ImpossiblePlan: The configuration cannot work; the message gives the reason.
        """
        check_pipelines_exist(self.params.pipelines, [name], option="name")
        fields = {**self.params.pipelines[name].model_dump(), **changes}
        config = PipelineConfig.model_validate(fields)
        params = replace(self.params, pipelines={**self.params.pipelines, name: config})
        address = config.service.address if config.service else ""
        if config.service and not address and purpose != "evaluate" and split == "train":
            raise ImpossiblePlan(
                f"pipelines.{name}.service: only stages start its workers; for a loop of your own,"
                " start a service (python -m throughline.pipelines.service) and give its address,"
                " or use none with service=None"
            )
        return open_input_pipeline(
            params, name, self.data, split=split, purpose=purpose, address=address
        )

    def compile_models(self, pipeline: InputPipeline) -> Models:
        """Build and compile the network, and the full model, which takes stored examples.

        The full model is not compiled if the network's builder has compiled the network.
        """
        models, steps = build_models_for(self.params, self.data), pipeline.steps_per_epoch
        whole = [] if models.network.compiled else [models.full_model]
        for model in (models.network, *whole):
            compile_model(model, self.params.train, target=models.target, steps=steps)
        return models
