"""The stack on Kubernetes as kubectl renders it: each overlay is what the schemas, the controllers
and our programs expect. No cluster is asked.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from typing import Any

import pytest
from ruamel.yaml import YAML

from infra.local.clusters import ALLOWED_FAILURES
from tests.support.command_lines import parse
from tests.support.manifest_checks import COMPOSE, README, STORAGE, find_faults
from tests.support.manifests import (
    FOLDER,
    OVERLAYS,
    Manifest,
    Workload,
    list_workloads,
    name_of,
    of_kind,
    render,
)
from tests.support.network_checks import find_arrows
from tests.support.project import ROOT
from throughline.settings import StorageSettings
from throughline.shared.dask_engine import ATTEMPTS

# MLflow warns about itself when its command line is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
BASE, INPUT = "base", "overlays/input-service"
HOSTS, JOBSET, KUEUE = "overlays/multi-host", "overlays/jobset", "overlays/kueue"
GPU, DASK, STORE = "overlays/gpu", "overlays/dask", "overlays/object-storage"
CHANGED = {STORE: ["Deployment worker"]}  # of the base, by an overlay
FOLDERS = (BASE, *(f"overlays/{name}" for name in OVERLAYS))
MISSING = object()
POD = ("spec", "template", "spec")
FIRST = (*POD, "containers", 0)
JOB = ("spec", "jobTemplate", "spec")
IN_JOB = (*JOB, "template", "spec", "containers", 0)
STAGES = ("spec", "replicatedJobs")
OTHER_HOST = "--hosts=$(RUN)-1.training-hosts,$(RUN)-0.training-hosts"
# Folder, manifest, where in it, what is put there, what is said of it.
PLANTED = (
    (INPUT, "Service dispatcher", ("spec", "selector", "app"), "dispatch", "selects no pod"),
    (INPUT, "Service dispatcher", ("spec", "ports", 0, "port"), 5055, "opens no port 5055"),
    (INPUT, "Deployment dispatcher", (*FIRST, "args", 4), "--port=1", "listens at [1], and opens"),
    (INPUT, "Deployment dispatcher", (*FIRST, "args", 6), "--host=x:5051", "unrecognized"),
    (INPUT, "Deployment dispatcher", (*FIRST, "args", 6), "--worker=x:5051", "no Service x has"),
    (INPUT, "NetworkPolicy dispatcher", ("spec", "egress"), [], "on one side only"),
    (BASE, "Deployment prefect", (*FIRST, "ports", 0, "containerPort"), 1, "opens no port 4200"),
    (BASE, "Deployment prefect", (*FIRST, "args", 5), "--prt", "--prt"),
    (BASE, "Deployment prefect", (*FIRST, "env", 0, "value"), "postgre", "no Service postgre has"),
    (
        *(BASE, "Deployment prefect", (*FIRST, "env", 4, "valueFrom", "secretKeyRef", "key")),
        *("PREFECT", "not among the documented secrets"),
    ),
    (
        *(BASE, "Deployment prefect", (*FIRST, "env", 4, "valueFrom", "secretKeyRef", "name")),
        *("secrets", "not among the documented secrets"),
    ),
    (
        *(BASE, "Deployment prefect", (*FIRST, "env", 4)),
        *({"name": "PREFECT_SERVER_API_AUTH_STRING", "value": "a:b"}, "is not from a secret"),
    ),
    (BASE, "Deployment mlflow", (*FIRST, "args", 5), "--app=basic-auth", "No such option"),
    (BASE, "Deployment mlflow", ("metadata", "namespace"), "default", "is not in the namespace"),
    (BASE, "Deployment worker", (*FIRST, "livenessProbe", "httpGet", "port"), 1, "asks port 1"),
    (BASE, "Deployment worker", (*FIRST, "env", 3, "value"), "http://mlflow:1000", "has port 1000"),
    (BASE, "Deployment worker", (*FIRST, "env", 3, "value"), "http://postgres:5432", "lets it"),
    (BASE, "Deployment worker", (*FIRST, "image"), "throughline:latest", "among the pinned"),
    (
        *(BASE, "Deployment worker", (*POD, "volumes", 0, "persistentVolumeClaim", "claimName")),
        *("projects", "no PersistentVolumeClaim projects"),
    ),
    (BASE, "StatefulSet postgres", (*POD, "volumes", 0, "configMap", "name"), "x", "ConfigMap x"),
    (BASE, "StatefulSet postgres", ("spec", "serviceName"), "postgre", "serviceName is no"),
    (BASE, "StatefulSet postgres", (*POD, "securityContext", "runAsNonRoot"), False, "as root"),
    (BASE, "StatefulSet store", (*FIRST, "securityContext"), {"privileged": True}, "is not {"),
    (BASE, "StatefulSet store", (*POD, "automountServiceAccountToken"), MISSING, "a token"),
    (BASE, "StatefulSet store", (*FIRST, "arg"), ["x"], "'arg' was unexpected"),
    (BASE, "NetworkPolicy nobody", ("spec", "policyTypes"), ["Ingress"], "is not refused"),
    (BASE, "NetworkPolicy store", ("metadata", "name"), "stores", "is about app 'store'"),
    (BASE, "NetworkPolicy postgres", ("spec", "ingress", 0, "ports", 0, "port"), 1, "no port 1"),
    (GPU, "CronJob training", (*IN_JOB, "args", 3), "--pipelin", "No such option"),
    (GPU, "CronJob training", (*IN_JOB, "args", 2), "flows.train", "No module named"),
    (GPU, "CronJob training", (*IN_JOB, "image"), "throughline:0.1.0", "throughline:0.1.0 with"),
    (DASK, "Service dask-scheduler", ("spec", "ports", 0, "port"), 8787, "opens no port 8787"),
    (DASK, "Deployment dask-worker", (*FIRST, "args", 3), "tcp://dask:8786", "no Service dask has"),
    (DASK, "Deployment dask-worker", (*FIRST, "args", 9), "8789", "listens at [8789], and opens"),
    (DASK, "Deployment dask-worker", (*FIRST, "args", 4), "--threads", "No such option"),
    (DASK, "NetworkPolicy dask-worker", ("spec", "ingress"), [], "on one side only"),
    (
        STORE,
        "CronJob training-hosts",
        (*IN_JOB, "env", 4, "value"),
        "http://store:1000",
        "port 1000",
    ),
    (STORE, "CronJob training-hosts", (*IN_JOB, "env", 4, "value"), "http://stores:8333", "stores"),
    (
        *(STORE, "CronJob training-hosts", (*IN_JOB, "env", 6, "valueFrom", "secretKeyRef", "key")),
        *("S3", "not among the documented secrets"),
    ),
    (STORE, "CronJob training-hosts", (*IN_JOB, "volumeMounts", 4, "name"), "x", "no volume x"),
    (STORE, "Deployment worker", (*FIRST, "volumeMounts", 4, "mountPath"), "/c", "at /columns"),
    (
        *(STORE, "CronJob training-hosts", (*IN_JOB, "volumeMounts", 4, "mountPath")),
        *("/columns/x", "at /columns"),
    ),
    (STORE, "NetworkPolicy training-hosts", ("spec", "egress", 2, "to"), [], "on one side only"),
    (HOSTS, "CronJob training-hosts", (*IN_JOB, "args", 3), OTHER_HOST, "--hosts names"),
    (HOSTS, "CronJob training-hosts", (*IN_JOB, "args", 8), "--config", "required: --pipeline"),
    (HOSTS, "CronJob training-hosts", (*JOB, "completions"), 3, "do not run at once"),
    (HOSTS, "CronJob training-hosts", (*JOB, "completionMode"), MISSING, "have no indices"),
    (HOSTS, "CronJob training-hosts", (*JOB, "backoffLimit"), 2, "does not end the others"),
    (HOSTS, "CronJob training-hosts", (*IN_JOB, "ports"), [], "listens at [20000], and opens []"),
    (HOSTS, "Service training-hosts", ("spec", "clusterIP"), MISSING, "gives its pods their names"),
    (HOSTS, "Service training-hosts", ("spec", "publishNotReadyAddresses"), False, "their names"),
    (HOSTS, "NetworkPolicy training-hosts", ("spec", "ingress"), [], "may not talk to one another"),
    (JOBSET, "JobSet training", ("spec", "failurePolicies"), {}, "'failurePolicies' was"),
    (JOBSET, "JobSet training", (*STAGES, 1, "dependsOn", 0, "status"), "Done", "'Done' is not"),
    (JOBSET, "JobSet training", (*STAGES, 1, "dependsOn", 0, "name"), "profile", "before it"),
    (JOBSET, "JobSet training", (*STAGES, 1, "name"), "training", "--hosts names"),
    (JOBSET, "JobSet training", (*STAGES, 2, "template", "spec", "tries"), 2, "'tries' was"),
    (KUEUE, "CronJob training", (*JOB, "suspend"), False, "do not wait"),
    (KUEUE, "LocalQueue training", ("metadata", "name"), "gpu", "no LocalQueue training"),
    (KUEUE, "LocalQueue training", ("spec", "clusterQueue"), "gpu", "no such ClusterQueue"),
    (KUEUE, "LocalQueue training", ("spec",), {"queue": "gpu"}, "'queue' was unexpected"),
    (KUEUE, "ResourceFlavor throughline-gpu", ("metadata", "name"), "gpu", "no ResourceFlavor"),
    (
        *(KUEUE, "ClusterQueue throughline"),
        *(("spec", "resourceGroups", 0, "flavors", 0, "resources", 2, "nominalQuota"), "1"),
        "2 of nvidia.com/gpu are over the quota",
    ),
)


def plant(manifests: list[Manifest], name: str, path: tuple[str | int, ...], value: Any) -> None:
    """Put a value into a manifest, or take out what is there."""
    (found,) = [manifest for manifest in manifests if name_of(manifest) == name]
    *outer, last = path
    for key in outer:
        found = found[key]
    if value is MISSING:
        del found[last]
    else:
        found[last] = value


def workload(folder: str, name: str) -> Workload:
    (found,) = [one for one in list_workloads(render(FOLDER / folder)) if one.name == name]
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_renders_without_faults(folder):
    assert find_faults(render(FOLDER / folder)) == []


def test_the_pod_that_clones_the_project_has_what_the_worker_has():
    """README.md puts image and address in; only here the programs are not of the project."""
    text = (FOLDER / "clone.yaml").read_text()
    clone = YAML(typ="safe").load(text)
    (said,) = find_faults([*render(FOLDER / BASE), clone])
    assert said.startswith("Pod clone: sh -ec") and "none of our programs" in said
    (command,) = re.findall(r"^sed (.*) infra/kubernetes/clone.yaml", README, re.MULTILINE)
    (own,) = clone["spec"]["containers"]
    (worker,) = workload(BASE, "Deployment worker").containers
    for key in ("image", "workingDir", "securityContext"):
        assert own[key] == worker[key]
    assert re.findall(r"s\|(.*?)\|", command) == [own["image"], "URL"]
    assert (text.count(own["image"]), text.count("URL")) == (1, 1)


@pytest.mark.parametrize(("folder", "name", "path", "value", "said"), PLANTED)
def test_a_fault_is_found(folder, name, path, value, said):
    manifests = render(FOLDER / folder)
    plant(manifests, name, path, value)
    assert [fault for fault in find_faults(manifests) if said in fault]


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_adds_to_the_base_and_opens_nothing(name):
    """So one after another gives all of them, where all name the same images, and what gives the
    base's worker a volume is applied last.
    """
    base, rendered = render(FOLDER / BASE), render(FOLDER / "overlays" / name)
    changed = [one for one in base if one not in rendered]
    assert [name_of(one) for one in changed] == CHANGED.get(f"overlays/{name}", [])
    added = [manifest for manifest in rendered if manifest not in base]
    assert added and len(added) + len(base) == len(rendered) + len(changed)
    assert not of_kind(added, "NetworkPolicy", "Namespace", "Secret")
    known = {name_of(one) for one in base if one not in changed}
    assert not {name_of(one) for one in added} & known


def test_the_worker_is_that_of_the_base_but_for_its_volume():
    own, base = (workload(folder, "Deployment worker").template for folder in (STORE, BASE))
    (container,), (volume,) = own["spec"]["containers"], own["spec"]["volumes"][-1:]
    assert container["volumeMounts"].pop() == {"name": "columns", "mountPath": "/columns"}
    assert own["spec"]["volumes"].pop() == volume and own == base
    (hosts,) = workload(STORE, "CronJob training-hosts").pod["volumes"][-1:]
    assert volume == hosts, "as large as that of a host"


def test_a_template_starts_nothing_by_itself():
    for folder in (GPU, HOSTS, KUEUE, STORE):
        templates = of_kind(render(FOLDER / folder), "CronJob")
        assert templates and all(one["spec"]["suspend"] is True for one in templates.values())


def test_each_training_has_a_gpu_per_pod():
    trainings = [
        one
        for folder in (KUEUE, JOBSET)
        for one in list_workloads(render(FOLDER / folder))
        if one.job
    ]
    asked = {one.name: [it["resources"]["limits"] for it in one.containers] for one in trainings}
    assert len(asked) == 5
    assert all(limits["nvidia.com/gpu"] == 1 for (limits,) in asked.values())


def test_the_stages_of_a_jobset_follow_one_another_on_other_names():
    """A process that has not ended would answer those of the next stage."""
    (jobset,) = of_kind(render(FOLDER / JOBSET), "JobSet").values()
    parts = jobset["spec"]["replicatedJobs"]
    stages = [workload(JOBSET, f"JobSet training {part['name']}") for part in parts]
    commands = [parse(stage.expand(stage.containers[0]))["command"] for stage in stages]
    assert [words[2] for words in commands] == ["tasks.build", "tasks.train", "tasks.profiling"]
    waits = [[(it["name"], it["status"]) for it in part.get("dependsOn", [])] for part in parts]
    assert waits == [[], [("build", "Complete")], [("train", "Complete")]]
    assert len({host for stage in stages for host in stage.hosts}) == 6
    assert jobset["spec"]["failurePolicy"]["restartStrategy"] == "BlockingRecreate"


def test_the_namespace_takes_restricted_pods_only():
    labels = of_kind(render(FOLDER / BASE), "Namespace")["throughline"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_store_is_reached_at_its_s3_port_alone_and_anybodys_graphs_reach_no_store():
    arrows = find_arrows(render(FOLDER / INPUT), "egress")
    assert {arrow for arrow in arrows if "store" in arrow} == {
        ("mlflow", "store", 8333),
        ("worker", "store", 8333),
        ("training-hosts", "store", 8333),
    }
    assert {arrow for arrow in arrows if arrow[0] in ("dispatcher", "input-worker")} == {
        ("dispatcher", "input-worker", 5051),
        ("input-worker", "dispatcher", 5050),
    }


def test_a_training_on_several_hosts_reaches_servers_of_the_stack_and_its_own_alone():
    policies = of_kind(render(FOLDER / HOSTS), "NetworkPolicy")
    assert not [rule for rule in policies["training-hosts"]["spec"]["egress"] if "ipBlock" in rule]
    arrows = find_arrows(list(policies.values()), "egress")
    assert {arrow[1] for arrow in arrows if arrow[0] == "training-hosts"} == {
        *("training-hosts", "mlflow", "store", "dispatcher", "input-worker"),
    }


def test_the_key_of_the_store_is_given_only_to_those_that_read_columns_from_it():
    """And what they fetch lies on a volume that is written by one pod and goes with it."""
    for folder, given in ((HOSTS, False), (KUEUE, False), (STORE, True)):
        training = workload(folder, "CronJob training-hosts")
        (container,) = training.containers
        names = {variable["name"] for variable in container["env"]}
        keys = {"AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ALLOW_HTTP"}
        assert keys & names == (keys if given else set())
    (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == "/columns")
    (volume,) = (one for one in training.pod["volumes"] if one["name"] == mount["name"])
    claim = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["accessModes"] == ["ReadWriteOnce"]


def test_the_parameters_that_the_overlay_names_put_and_fetch_columns_there():
    storage = StorageSettings.model_validate(STORAGE)
    assert (storage.url, str(storage.cache)) == ("s3://columns", "/columns")


def test_the_dispatcher_keeps_its_journal_on_a_volume_that_stays():
    dispatcher = workload(INPUT, "Deployment dispatcher")
    (container,) = dispatcher.containers
    folder = parse(dispatcher.expand(container))["work_dir"]
    (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == folder)
    (volume,) = (one for one in dispatcher.pod["volumes"] if one["name"] == mount["name"])
    assert "persistentVolumeClaim" in volume
    service = COMPOSE["services"]["dispatcher"]
    assert f"--work-dir {folder}" in service["command"]
    assert service["volumes"] == [f"journal:{folder}"] and "journal" in COMPOSE["volumes"]


def test_schedulers_allow_an_item_to_end_as_many_workers_as_a_stage_says():
    (scheduler,) = workload(DASK, "Deployment dask-scheduler").containers
    assert {one["name"]: one["value"] for one in scheduler["env"]} == ALLOWED_FAILURES
    assert [*ALLOWED_FAILURES.values()] == [str(ATTEMPTS - 1)]
    (worker,) = workload(DASK, "Deployment dask-worker").containers
    assert parse(worker["args"])["memory_limit"] == "0"


def test_workers_of_both_kinds_of_deployment_reach_the_store_by_the_same_variables():
    def of_the_store(names: Iterable[str]) -> set[str]:
        return {name for name in names if name.startswith("AWS_")}

    (container,) = workload(BASE, "Deployment worker").containers
    given = of_the_store(variable["name"] for variable in container["env"])
    assert given == of_the_store(COMPOSE["services"]["worker"]["environment"])


def test_both_kinds_of_deployment_start_the_same_programs():
    def programs(text: str) -> set[str]:
        return set(
            re.findall(
                r"infra\.store|prefect server|flows\.servers\.tracking_server|flows\.worker|service"
                r" (?:dispatcher|worker)",
                text,
            )
        )

    commands = " ".join(str(service.get("command", "")) for service in COMPOSE["services"].values())
    arguments = " ".join(
        word
        for one in list_workloads(render(FOLDER / INPUT))
        for container in one.containers
        for word in one.expand(container)
    )
    assert programs(commands) == programs(arguments) and len(programs(commands)) == 6


def test_the_commands_of_the_readme_name_what_there_is(tmp_path):
    pages = [ROOT / "docs" / "operating.md", *FOLDER.rglob("*.md"), *FOLDER.rglob("*.yaml")]
    text = "\n".join(page.read_text() for page in pages)
    named = set(re.findall(r"apply -k (\S+?)[`\s]", text))
    assert f"infra/kubernetes/{GPU}" in named
    assert all((ROOT / folder / "kustomization.yaml").is_file() for folder in named - {"mine"})
    assert all((FOLDER / path).exists() for path in re.findall(r"^\| `(\S+?)`", README, re.M))
    templates = set(re.findall(r"--from=cronjob/(\S+)", text))
    assert templates == set(of_kind(render(FOLDER / HOSTS), "CronJob"))


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_folder_of_ones_own_in_the_readme_names_the_registry(tmp_path, name):
    (example,) = re.findall(r"```yaml\n(# mine/kustomization.yaml\n.*?)```", README, re.DOTALL)
    assert example.count(GPU) == 1
    shutil.copytree(FOLDER, tmp_path / "infra" / "kubernetes")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").write_text(example.replace(GPU, f"overlays/{name}"))
    images = {
        container["image"]
        for one in list_workloads(render(tmp_path / "mine"))
        for container in one.containers
    }
    without = ("dask", "input-service")
    with_gpu = set() if name in without else {"registry.example/throughline:0.1.0-gpu"}
    assert images == {"registry.example/throughline:0.1.0", "postgres:17.6-bookworm", *with_gpu}


@pytest.mark.parametrize("stage", ["build", "profiling"])
def test_the_template_of_several_hosts_becomes_that_of_another_stage(stage):
    """As README.md has sed do it."""
    assert f"sed s/tasks.train/tasks.{stage}/" in README
    hosts = workload(HOSTS, "CronJob training-hosts")
    words = [
        word.replace("tasks.train", f"tasks.{stage}") for word in hosts.expand(hosts.containers[0])
    ]
    assert parse(parse(words)["command"])["pipeline"] == "optimized"
