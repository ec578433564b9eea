"""The manifests of infra/kubernetes as `kubectl kustomize` renders them, and the pods in them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
from ruamel.yaml import YAML

from tests.support.project import ROOT

FOLDER = ROOT / "infra" / "kubernetes"
OVERLAYS = tuple(sorted(path.name for path in (FOLDER / "overlays").iterdir()))
KUBECTL = Path(sys.executable).with_name("kubectl")  # of the locked packages
KUBERNETES = "1.34.1"
CUSTOM = json.loads((ROOT / "tests" / "infra" / "custom-resources.json").read_text())
# By which their controllers label the pods of a job and of a JobSet.
JOB_NAME, JOBSET_NAME = "batch.kubernetes.io/job-name", "jobset.sigs.k8s.io/jobset-name"

Manifest = dict[str, Any]


def render(folder: Path) -> list[Manifest]:
    """What `kubectl apply -k` would apply, in its order."""
    return json.loads(_render(folder))


@cache
def _render(folder: Path) -> str:
    done = subprocess.run(
        [KUBECTL, "kustomize", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ValueError(f"{folder} cannot be rendered: {done.stderr}")
    return json.dumps(list(YAML(typ="safe").load_all(done.stdout)))


def name_of(manifest: Manifest) -> str:
    """Kind and name, as `kubectl` says them."""
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def of_kind(manifests: Sequence[Manifest], *kinds: str) -> dict[str, Manifest]:
    """The manifests of some kinds by their names."""
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] in kinds}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The pods of one template, with the labels and the names that their controller gives them.

    `job`: the specification of the job that they belong to, if any. `hosts`: their names within the
    namespace, of an Indexed Job in the order of the indices.
    """

    name: str
    template: Manifest
    job: Manifest | None = None
    labels: Mapping[str, str]
    hosts: tuple[str, ...] = ()

    @property
    def pod(self) -> Manifest:
        """The specification of the pods."""
        return self.template["spec"]

    @property
    def app(self) -> str:
        """The label by which services and policies select them."""
        return self.labels.get("app", "")

    @property
    def containers(self) -> list[Manifest]:
        """All containers, those that run before the others, too."""
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def ports(self) -> set[int]:
        """What the containers say that they open."""
        return {
            port["containerPort"]
            for container in self.containers
            for port in container.get("ports", [])
        }

    def expand(self, container: Manifest) -> list[str]:
        """The command of a container with $(VARIABLE) of its labels and its name put in, as
        Kubernetes does; one that nothing sets stays.
        """
        own = {f"metadata.labels['{key}']": value for key, value in self.labels.items()}
        fields = {"metadata.name": f"{self.name.split()[1]}-0", **own}
        words = [*container.get("command", []), *container.get("args", [])]
        for variable in container.get("env", []):
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            if field in fields:
                words = [word.replace(f"$({variable['name']})", fields[field]) for word in words]
        return words


def list_workloads(manifests: Sequence[Manifest]) -> list[Workload]:
    """The pods that manifests start, or hold a template of."""
    return [workload for manifest in manifests for workload in _workloads_of(manifest)]


def _workloads_of(manifest: Manifest) -> Iterator[Workload]:
    name, own = name_of(manifest), manifest["metadata"]["name"]
    if manifest["kind"] in ("Deployment", "StatefulSet"):
        template = manifest["spec"]["template"]
        yield Workload(name=name, template=template, labels=template["metadata"]["labels"])
    elif manifest["kind"] == "Pod":
        yield Workload(name=name, template=manifest, labels=manifest["metadata"]["labels"])
    elif manifest["kind"] == "CronJob":
        job, run = manifest["spec"]["jobTemplate"]["spec"], f"{own}-1"
        service = job["template"]["spec"].get("subdomain")
        yield Workload(
            name=name,
            template=job["template"],
            job=job,
            labels={**job["template"]["metadata"]["labels"], JOB_NAME: run},
            hosts=tuple(f"{run}-{index}.{service}" for index in range(job.get("completions", 1))),
        )
    elif manifest["kind"] == "JobSet":
        for part in manifest["spec"]["replicatedJobs"]:
            job, run = part["template"]["spec"], f"{own}-{part['name']}-0"
            count = job.get("completions", 1)
            yield Workload(
                name=f"{name} {part['name']}",
                template=job["template"],
                job=job,
                labels={**job["template"]["metadata"]["labels"], JOBSET_NAME: own},
                hosts=tuple(f"{run}-{index}.{own}" for index in range(count)),
            )


def validate(manifest: Manifest) -> None:
    """Hold a manifest against Kubernetes' schemas, a custom resource against its own.

    Raises:
      jsonschema.ValidationError: it is not what they say.
    """
    kind = f"{manifest['apiVersion']} {manifest['kind']}"
    if kind in CUSTOM:
        jsonschema.validate(manifest, CUSTOM[kind])
        for part in manifest.get("spec", {}).get("replicatedJobs", []):
            job = {"metadata": {"name": part["name"]}, **part["template"]}
            validate({"apiVersion": "batch/v1", "kind": "Job", **job})
    else:
        _validate(json.dumps(manifest))


@cache
def _validate(text: str) -> None:
    kubernetes_validate.validate(json.loads(text), KUBERNETES, strict=True)
