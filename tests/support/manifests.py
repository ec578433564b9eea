"""The manifests of infra/kubernetes as `kubectl kustomize` renders them, and the pods in them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.support.project import ROOT

FOLDER = ROOT / "infra" / "kubernetes"
OVERLAYS = tuple(sorted(f"overlays/{path.name}" for path in (FOLDER / "overlays").iterdir()))
KUBECTL = Path(sys.executable).with_name("kubectl")  # of the locked packages
# By which their controllers label the pods of a job and of a JobSet.
JOB_NAME, JOBSET_NAME = "batch.kubernetes.io/job-name", "jobset.sigs.k8s.io/jobset-name"

Manifest = dict[str, Any]
Arrow = tuple[str, str, int | None]  # from app to app at a port; None: at any


@cache
def render(folder: str | Path) -> list[Manifest]:
    """What `kubectl apply -k` would apply of a folder of infra/kubernetes, in its order."""
    command = [KUBECTL, "kustomize", FOLDER / folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{folder}: {done.stderr}"
    return list(YAML(typ="safe").load_all(done.stdout))


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


def find_arrows(manifests: Sequence[Manifest], direction: str) -> set[Arrow]:
    """Who may talk to whom by the rules of a direction, `ingress` or `egress`, between pods."""
    peers, arrows = {"ingress": "from", "egress": "to"}[direction], set()
    for policy in of_kind(manifests, "NetworkPolicy").values():
        own = policy["spec"]["podSelector"].get("matchLabels", {}).get("app")
        for rule in policy["spec"].get(direction, []):
            pods = [peer["podSelector"] for peer in rule[peers] if "podSelector" in peer]
            for app in [pod["matchLabels"]["app"] for pod in pods]:
                pair = (app, own) if direction == "ingress" else (own, app)
                arrows |= {(*pair, it.get("port")) for it in rule.get("ports", [{}])}
    return arrows
