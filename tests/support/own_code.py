"""Code of one's own that params.yaml names, and the identities of the stages that run it."""

import copy
from pathlib import Path

from tests.support.project import SMALL

OWN = {
    "my_ops.py": (
        "from throughline.plan.ops import Op\nfrom helpers.amounts import BY\n\n\n"
        "class Shift(Op):\n"
        "    name = 'shift'\n\n    def compute(self, element, draw):\n        return {**element,"
        " 'image': element['image'] + BY}\n"
    ),
    "helpers/__init__.py": "",
    "helpers/amounts.py": "BY = 1\n",
    "my_augmentation.py": (
        "from throughline.plan.ops import Op\n\n\nclass Noise(Op):\n    name = 'noise'\n"
        "    random = True\n    STRENGTH = 1\n"
    ),
    "my_models.py": (
        "WIDTH = 8\n\n\ndef build(input_shape, outputs):\n    import keras\n    import"
        " layers_of_mine\n\n    return layers_of_mine\n"
    ),
    "layers_of_mine.py": "DEPTH = 1\n",
    "unused.py": "NUMBER = 1\n",
}
PARAMS = copy.deepcopy(SMALL) | {
    "preprocess": ["decode", "my_ops:Shift"],
    "augment": ["flip", {"my_augmentation:Noise": {}}],
    "model": {"name": "my_models:build"},
}
BOTH = tuple(SMALL["pipelines"])
MEASURED = ("build", "train", "profile")


def each(*stages: str) -> set[str]:
    """Stages by the names that DVC gives them: those of each configuration, for both."""
    return {
        name
        for stage in stages
        for name in ([f"{stage}@{key}" for key in BOTH] if stage in MEASURED else [stage])
    }


def read_identities(folder: Path) -> dict[str, str]:
    """The identities in a folder by the names that DVC gives their stages."""
    return {
        path.relative_to(folder).with_suffix("").as_posix().replace("/", "@"): path.read_text()
        for path in folder.rglob("*.json")
    }


def differ(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before | after if before.get(name) != after.get(name)}


EVERY_RUN = each("snapshot", "build", "train", "profile", "race")
