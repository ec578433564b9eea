"""Skips the script's saves once its training has had repeated or changed batches: a later run would
continue from such a save, or take it for a result.

Libraries' functions are in a table; the script's own file operations are found by their calling
frame: `open` gets the null device, the others do nothing.
"""

import builtins
import functools
import io
import os
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Any

from whowaits.callers import calls_by_itself, find_caller
from whowaits.imports import ImportWatch, replaces
from whowaits.session import Session

# Functions by module that save a training or delete a saved one.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "torch.serialization": ("save",),
    "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
    **{f"safetensors.{each}": ("save_file",) for each in ("numpy", "tensorflow", "flax")},
    "transformers.modeling_utils": ("PreTrainedModel.save_pretrained",),
    "transformers.trainer": ("Trainer._save_checkpoint", "Trainer.save_model"),
    "accelerate.accelerator": tuple(f"Accelerator.save{each}" for each in ("", "_model", "_state")),
    **{
        f"{each}.strategies.strategy": ("Strategy.save_checkpoint", "Strategy.remove_checkpoint")
        for each in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric")
    },
    "orbax.checkpoint": ("CheckpointManager.save", "Checkpointer.save", "AsyncCheckpointer.save"),
    **dict.fromkeys(("keras", "tf_keras"), ("Model.save", "Model.save_weights", "Model.export")),
    "keras.src.saving.saving_api": ("save_model", "save_weights"),
    "tf_keras.src.saving.saving_api": ("save_model", "save_weights"),
    "tensorflow.python.checkpoint.checkpoint": ("Checkpoint.save", "Checkpoint.write"),
    "tensorflow.python.checkpoint.checkpoint_management": ("CheckpointManager.save",),
    "tensorflow.python.saved_model.save": ("save",),
    "numpy": ("save", "savetxt", "savez", "savez_compressed"),
    "joblib": ("dump",),
}
GENERAL = frozenset(("numpy", "joblib"))  # other libraries may save anything by these
# Calls of the script that delete files, or replace them by others, whose save may be skipped.
FILE_CALLS = {
    os: ("replace", "rename", "remove", "unlink", "link", "symlink"),
    shutil: ("rmtree", "move", "copy", "copy2", "copyfile", "copytree"),
}
REPLACING = frozenset("wx")  # modes of `open`


class SaveWatch:
    def __init__(self, session: Session, makes_batch: Callable[[], bool]) -> None:
        self.session, self._makes_batch = session, makes_batch

    def install(self, imports: ImportWatch) -> None:
        """Wrap the functions that save, once their libraries are imported."""
        for module, names in LIBRARIES.items():
            imports.on_import(module, functools.partial(self._patch, names=names))

    def watch_files(self) -> None:
        """Watch the files that the script itself writes from now on."""
        for module, names in FILE_CALLS.items():
            for name in names:
                self._wrap(module, name, called=f"{module.__name__}.{name}", of_script=True)

        @replaces(builtins, "open")
        def _(open_file: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            is_new = not REPLACING.isdisjoint(mode) and not isinstance(file, int)
            if is_new and self.session.saves.are_left_out and self._saves(sys._getframe(2)):
                self.session.saves.add(f"open at {find_caller(sys._getframe(2))}")
                file, mode = os.devnull, mode.replace("x", "w")
            return open_file(file, mode, *args, **kwargs)

        io.open = builtins.open

    def _saves(self, caller: Any) -> bool:
        """Return whether the script itself makes a call, in its main thread and not for a batch."""
        here = threading.current_thread() is threading.main_thread()  # other threads make batches
        return here and not self._makes_batch() and calls_by_itself(caller)

    def _patch(self, module: Any, names: tuple[str, ...]) -> None:
        for path in names:
            *above, name = path.split(".")
            owner: Any = module
            for each in above:
                owner = getattr(owner, each, None)
            if isinstance(owner, type):
                owner = next((each for each in owner.__mro__ if name in vars(each)), None)
            if owner is not None and hasattr(owner, name):
                package = "" if above else f"{module.__name__.partition('.')[0]}."
                of_script = module.__name__ in GENERAL
                self._wrap(owner, name, called=package + path, of_script=of_script)

    def _wrap(self, owner: Any, name: str, *, called: str, of_script: bool) -> None:
        """Skip calls while saves are left out, except to memory; if `of_script`, the script's."""

        @replaces(owner, name)
        def _(save: Any, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(2)
            in_memory = any(isinstance(each, io.BytesIO) for each in (*args, *kwargs.values()))
            of_other = in_memory or (of_script and not self._saves(caller))
            if of_other or not self.session.saves.are_left_out:
                return save(*args, **kwargs)
            self.session.saves.add(f"{called} at {find_caller(caller)}")
            return None
