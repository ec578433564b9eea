"""The digest of a data set follows its contents, labels and splits."""

from __future__ import annotations

import pandas as pd
import pytest

from tasks.data.manifest import content_digest

EXAMPLES = pd.DataFrame({"id": ["a", "b"], "digest": ["00", "01"], "label": [0, 1], "split": ["train", "test"], "uri": ["/a", "/b"]})


@pytest.mark.parametrize("column", ["id", "digest", "label", "split"])
def test_a_change_of_any_example_changes_the_digest(column):
    changed = EXAMPLES.assign(**{column: EXAMPLES[column].tolist()[::-1]})
    assert content_digest(changed, ("x", "y")) != content_digest(EXAMPLES, ("x", "y"))


def test_so_do_other_classes_and_the_place_of_files_does_not():
    assert content_digest(EXAMPLES, ("y", "x")) != content_digest(EXAMPLES, ("x", "y"))
    assert content_digest(EXAMPLES.assign(uri="/elsewhere"), ("x", "y")) == content_digest(EXAMPLES, ("x", "y"))
