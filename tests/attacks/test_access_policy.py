"""What somebody who may only start runs tries with their parameters; a line of a list is a case."""

import json
import sys
import zipfile
from pathlib import Path

import markdown_it
import pytest
from prefect.states import Failed

from flows.orchestration import artifacts, flow_run
from flows.run.access_policy import CONFINED, OWN_SERVICE, AccessPolicy, Limits
from flows.run.parameters import Changes
from flows.run.resolution import resolve
from tests.support.project import SMALL, git, write_params
from tests.support.small_data import write_files
from throughline.config.params_file import apply_overrides
from throughline.data.sources import table
from throughline.settings import DataSettings
from throughline.shared.errors import InvalidParams, UserError
from throughline.shared.layout import MODEL_SPEC

pytestmark = pytest.mark.integration

OWN = {
    "data": {"path": "data/raw", "source": "image_folder"},
    "model": {"name": "mlp"},
    "preprocess": [{"their_ops:Cut": {"size": 3}}, {"tokenize": {"model": "/srv/known.model"}}],
    "pipelines": {"far": {"service": {"address": "grpc://known:5050"}}},
}
OUTSIDE, HIDDEN, UNGRANTED = "is outside of what", "is hidden", "is not granted"
FOREIGN = "is not a module of this project"

OF_ARRAYS = {"path": "photos", "source": "arrays"}
OUT_OF_FILES = ("/etc", "photos/../../elsewhere", "way-out/passwd", "photos\0", "circle/x")
OUT_OF_BUCKETS = (
    *("s3://granted/photos-too", "s3://granted", "s3://granted/photos/../secret"),
    *("gs://granted/photos", ["s3://granted/photos"], "file:///etc"),
)
HIDDEN_FILES = (
    "./photos/../.throughline/stack/environment",
    "plain-name",  # a link to a hidden file
    ".open/x",  # a hidden link to a plain file
)
NOT_OURS = (
    *("my_models.os:system", "untracked:build", "mlartifacts.0.1.artifacts.evil:build"),
    "throughline.shared.files:replace_folder",
)
STRANGERS = ("grpc://169.254.169.254:80", ["grpc://known:5050"])

REFUSED = [
    *(({"data": {"path": path}}, OUTSIDE) for path in OUT_OF_FILES + OUT_OF_BUCKETS),
    *(({"data": {"path": path, "source": "table"}}, HIDDEN) for path in HIDDEN_FILES),
    ({"data": {**OF_ARRAYS, "features": "../../secret/x"}}, OUTSIDE),
    ({"data": {**OF_ARRAYS, "labels": "../.throughline/y"}}, HIDDEN),
    ({"data": {"path": "granted/set", "follow_links": True}}, "data.follow_links: runs from"),
    # files that other sections name
    ({"preprocess": ["decode", {"tokenize": {"model": "way-out/passwd"}}]}, OUTSIDE),
    ({"preprocess": [{"tokenize": {"model": "infra/.env"}}]}, HIDDEN),
    ({"model": {"weights": "/etc/passwd"}}, OUTSIDE),
    ({"model": {"from": "mlartifacts/0/1/artifacts/evil.keras"}}, FOREIGN),
    ({"model": {"from": "mlartifacts/0/1/artifacts/ours.keras"}}, FOREIGN),
    # code
    *(({"model": {"name": name}}, FOREIGN) for name in NOT_OURS),
    ({"train": {"loss": {"os:abort": {}}}}, FOREIGN),
    ({"augment": [{"my_models/../x:X": {}}]}, FOREIGN),
    ({"postprocess": [":X"]}, FOREIGN),
    ({"preprocess": {"x": {"y": [["os:system"]]}}}, FOREIGN),
    # addresses
    ({"engine": {"address": "tcp://attacker.example:8786"}}, UNGRANTED),
    ({"storage": {"url": "s3://attackers-bucket/x"}}, UNGRANTED),
    ({"storage": {"cache": "/etc"}}, UNGRANTED),
    *(({"pipelines": {"a": {"service": {"address": one}}}}, UNGRANTED) for one in STRANGERS),
]
LINKS = {"way-out": "/etc", "circle": "circle", "plain-name": "infra/.env", ".open": "photos"}
MODEL_FILES = {
    "evil.keras": {"w": "os:abort"},
    "ours.keras": {"w": "throughline.models.model_files:load_model"},
    "good.keras": {"a": "my_models:Scale", "b": "throughline.models.transformers:_Block"},
}
SERVICES = ("grpc://known:5050", "grpc://granted:1", "grpc://ours:2")
ALLOWED = [
    {},
    {"data": {**OF_ARRAYS, "features": "x"}},
    {"data": {"path": "granted/set", "follow_links": False}},
    {"data": {"path": "s3://granted/photos"}},
    {"data": {"path": "s3://granted/photos/2024", "source": "arrays", "features": "x"}},
    {"preprocess": [{"tokenize": {"model": "photos/tokenizer.model"}}, {"tokenize": {}}]},
    {"preprocess": [{"tokenize": {"model": "/srv/known.model"}}]},
    {"model": {"from": "mlartifacts/0/1/artifacts/good.keras"}},
    {"model": {"name": "package.inner:build"}},
    {"augment": [{"their_ops:Cut": {"size": 9}}]},
    *({"pipelines": {"a": {"service": {"address": one}}, "b": {}}} for one in SERVICES),
    {"pipelines": None, "data": 3, "model": "x"},
]


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reach") / "project"
    tracked = ["my_models.py", "package/inner.py", "throughline/shared/files.py"]
    others = ["infra/.env", ".throughline/stack/environment", "photos/x", "granted/set/x"]
    others += ["untracked.py", "mlartifacts/0/1/artifacts/evil.py"]
    write_files(folder, dict.fromkeys(tracked + others, ""))
    for link, target in LINKS.items():
        (folder / link).symlink_to(target)
    git(folder, "init", "-q")
    git(folder, "add", *tracked)
    for name, objects in MODEL_FILES.items():
        with zipfile.ZipFile(folder / "mlartifacts/0/1/artifacts" / name, "w") as file:
            file.writestr(MODEL_SPEC, json.dumps({"objects": objects}))
    return folder


LIMITS = Limits(
    data_roots=(Path("granted"),),
    data_buckets=("s3://granted/photos/",),
    service_addresses=("grpc://granted:1",),
)


def check(project: Path, asked: dict) -> None:
    """Refuse what a run asks for and may not reach."""
    AccessPolicy(project=project, own=OWN, limits=LIMITS).check(OWN | asked)


@pytest.mark.parametrize(("asked", "why"), REFUSED, ids=lambda value: str(value)[:70])
def test_it_is_refused_before_anything_is_opened_or_imported(project, asked, why):
    before = set(sys.modules)
    with pytest.raises(InvalidParams, match=why):
        check(project, asked)
    assert set(sys.modules) - before <= {"encodings.cp437"}, "which zipfile takes"


@pytest.mark.parametrize("url", ["s3://KEY:a/hidden@b", "s3://b/x?sig=hidden"])
def test_a_secret_in_what_is_refused_is_not_repeated(project, url):
    for asked in ({"data": {"path": url}}, {"storage": {"url": url}}):
        with pytest.raises(InvalidParams) as refused:
            check(project, asked)
        assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("asked", ALLOWED, ids=lambda value: str(value)[:70])
def test_what_the_project_has_and_what_is_granted_may_be_used(project, monkeypatch, asked):
    monkeypatch.setenv(OWN_SERVICE, "grpc://ours:2")
    check(project, asked)


@pytest.fixture
def confined(project, monkeypatch) -> Path:
    """The project, for a run from the UI, with parameters of its own."""
    monkeypatch.chdir(project)
    monkeypatch.setenv(CONFINED, "1")
    data = {"source": "image_folder", "path": "photos"}
    write_params(project, {"data": data, "pipelines": {"naive": {}}})
    return project


def test_what_a_run_names_is_imported_only_after_it_has_been_allowed(
    confined, monkeypatch, tmp_path
):
    """An op of another folder of sys.path writes a file when it is imported."""
    (tmp_path / "elsewhere.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for asked in ('augment=["elsewhere:Op"]', "model.name=elsewhere.inner:build"):
        started = flow_run.start_run(Changes(overrides=[asked]), None)
        with pytest.raises(InvalidParams, match=FOREIGN), started:
            pass
    assert not (tmp_path / "imported").exists()


def test_auto_looks_into_no_folder_that_a_run_may_not_read(confined, tmp_path):
    (tmp_path / "secret.pem").touch()
    asked = ["data.source=auto", f"data.path={tmp_path}"]
    with pytest.raises(InvalidParams, match=OUTSIDE) as refused:
        resolve(confined, Changes(overrides=asked))
    assert ".pem" not in str(refused.value)


def test_links_lead_out_of_data_only_where_params_yaml_names_it(confined):
    data = {"source": "image_folder", "path": "photos"}
    write_params(confined, SMALL | {"data": data})
    asked = [[f"data.path={path}", "train.epochs=7"] for path in ("photos", "granted")]
    photos, others = (resolve(confined, Changes(overrides=one)) for one in asked)
    assert photos.params.data.follow_links and not others.params.data.follow_links
    assert "follow_links: false" in others.text


@pytest.mark.parametrize(
    "value",
    ["[&a [x, x], *a]", "{a: " * 500, "x" * 50_000, "2024-13-45", "9" * 5_000],
    ids=lambda value: value[:12],
)
def test_an_override_that_would_grow_or_never_end_is_refused_at_once(value):
    with pytest.raises(InvalidParams, match="expected a short YAML value without aliases"):
        apply_overrides({}, [f"key={value}"])


@pytest.mark.parametrize("name", [".env", "key.txt"])
def test_a_file_that_is_no_table_is_not_printed(tmp_path, name):
    (tmp_path / name).write_text("PREFECT_AUTH=admin:secret,S3_SECRET=x\n1,2\n3,4\n")
    with pytest.raises(UserError) as refused:
        table.scan(DataSettings(source="table", path=str(tmp_path / name)))
    assert "secret" not in str(refused.value).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    "text",
    ["a\n```\n# [click](http://evil)\n", "````\n~~~\n<img src=x>", "`" * 500 + "\n# x"],
    ids=repr,
)
def test_a_line_of_a_log_does_not_leave_the_fence_of_an_artifact(text):
    made = artifacts.describe_failure("lively-owl", Failed(message=text))
    tokens = markdown_it.MarkdownIt().parse(made)
    types = [token.type for token in tokens if token.type != "inline"]
    assert types == ["heading_open", "heading_close", "fence"]
    assert tokens[-1].content.rstrip("\n") == text.rstrip("\n")
