"""The manifests of examples/deployment/kubernetes: kustomize renders them, and their commands and probes work.

There is no cluster here: the manifests are compared with Kubernetes' own schemas, and each container is a process.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from rqsched.config import Settings
from rqsched.http import server
from tests.http.conftest import make_web, web
from tests.support.env import MINUTE
from tests.support.processes import BIN, SOON, Process, Processes, wait_until
from tests.support.prometheus import PROMETHEUS, prometheus
from tests.support.servers import free_port
from tests.support.serving import served, status_of
from tests.support.web import Web, at
from tests.system.acceptance.deployment import APPLICATION, TOKEN, TOKENS

__all__ = ["make_web", "web"]

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.timeout(240),
    pytest.mark.skipif(KUBECTL is None, reason="no kubectl here, whose `kubectl kustomize` renders the manifests"),
]

FOLDER = APPLICATION / "kubernetes"
OVERLAYS = ["base", "by-queue-wait"]
PODS = ["migrate", "worker", "dispatcher", "web"]
Manifest = dict[str, Any]


def render(overlay: str) -> str:
    assert KUBECTL is not None
    command = [KUBECTL, "kustomize", str(FOLDER / overlay)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@cache
def manifests(overlay: str = "base") -> dict[str, dict[str, Manifest]]:
    """Return the applied manifests by kind and by name, without the hash in the name."""
    found: dict[str, dict[str, Manifest]] = {}
    for one in yaml.safe_load_all(render(overlay)):
        found.setdefault(one["kind"], {})[one["metadata"]["name"]] = one
    return found


def pod_of(name: str) -> Manifest:
    """The template of the pods of a Deployment or Job."""
    of_kind = manifests()["Job" if name == "migrate" else "Deployment"]
    template: Manifest = of_kind[f"rqsched-{name}"]["spec"]["template"]
    return template


def container_of(name: str) -> Manifest:
    [container] = pod_of(name)["spec"]["containers"]
    found: Manifest = container
    return found


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_would_take_every_manifest(overlay: str, version: str, tmp_path: Path) -> None:
    (tmp_path / "rendered.yaml").write_text(render(overlay))
    command = [str(BIN / "kubernetes-validate"), "--strict", "-k", version, str(tmp_path / "rendered.yaml")]

    read = subprocess.run(command, capture_output=True, text=True, check=False)

    assert read.returncode == 0, read.stdout + read.stderr
    assert (read.stdout + read.stderr).count(" passed for resource ") == sum(map(len, manifests(overlay).values()))


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_no_root_writes_nothing_of_its_image_and_has_no_rights(name: str) -> None:
    pod, container = pod_of(name)["spec"], container_of(name)

    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} == container["resources"]["requests"].keys()
    assert {"memory"} == container["resources"]["limits"].keys()


@pytest.mark.parametrize("name", PODS)
def test_a_pod_gets_the_secrets_it_uses_and_none_in_its_environment(name: str) -> None:
    given = environment_of(name)
    secrets = {"database_url", "redis_url"} | ({"tokens"} if name == "web" else set())
    volumes = [one["secret"]["items"] for one in pod_of(name)["spec"]["volumes"] if "secret" in one]

    assert {one["key"] for items in volumes for one in items} == secrets
    assert {variable for variable in given if variable != "RQSCHED_IMPORTS"} == {
        f"RQSCHED_{one.upper()}_FILE" for one in secrets
    }


def test_a_pod_has_longer_to_end_than_its_process_may_take() -> None:
    graces = {name: pod_of(name)["spec"]["terminationGracePeriodSeconds"] for name in PODS[1:]}
    before = int(container_of("web")["lifecycle"]["preStop"]["exec"]["command"][1])

    assert graces["worker"] > Settings().run_timeout.total_seconds()
    assert graces["web"] > before + server._GRACE


def test_what_is_spread_scaled_and_kept_is_what_is_there() -> None:
    found = manifests()
    deployments = {name: one["spec"]["selector"]["matchLabels"] for name, one in found["Deployment"].items()}
    scaled = {one["spec"]["scaleTargetRef"]["name"]: one["spec"] for one in found["HorizontalPodAutoscaler"].values()}
    kept = {name: one["spec"]["selector"]["matchLabels"] for name, one in found["PodDisruptionBudget"].items()}

    assert kept == deployments
    assert found["Service"]["rqsched-web"]["spec"]["selector"] == deployments["rqsched-web"]
    assert all(pod_of(name)["metadata"]["labels"] == deployments[f"rqsched-{name}"] for name in PODS[1:])
    assert scaled.keys() == {"rqsched-worker", "rqsched-web"}
    for name, one in found["Deployment"].items():
        least = scaled[name]["minReplicas"] if name in scaled else one["spec"]["replicas"]
        assert (least, name in scaled) == (2, "replicas" not in one["spec"]), "an autoscaler alone says how many"
        [spread] = one["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"] == deployments[name]


def environment_of(name: str) -> dict[str, str]:
    """The variables of a container."""
    container = container_of(name)
    [source] = container["envFrom"]
    given: dict[str, str] = {**manifests()["ConfigMap"][source["configMapRef"]["name"]]["data"]}
    return given | {one["name"]: one["value"] for one in container.get("env", [])}


class Pods:
    """A replacement of the pods: each is a process with its own /tmp and the secrets that are mounted for it."""

    def __init__(self, folder: Path, secrets: dict[str, str], processes: Processes) -> None:
        self.folder, self.secrets, self.processes = folder, secrets, processes
        self.port = free_port()
        self.started: dict[str, Process] = {}

    def environment(self, name: str) -> dict[str, str]:
        """The variables of a pod, which has its files below a folder of its own."""
        own, pod, container = self.folder / name, pod_of(name)["spec"], container_of(name)
        volumes = {one["name"]: one for one in pod["volumes"]}
        for mount in container["volumeMounts"]:
            (at := own / mount["mountPath"].lstrip("/")).mkdir(parents=True, exist_ok=True)
            for item in volumes[mount["name"]].get("secret", {"items": []})["items"]:
                (at / item["path"]).write_text(self.secrets[item["key"]])
        given = {key: re.sub(r"^/run/secrets", f"{own}/run/secrets", one) for key, one in environment_of(name).items()}
        return {**given, "TMPDIR": str(own / "tmp"), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def words(self, command: list[str]) -> list[str]:
        port = str(container_of("web")["ports"][0]["containerPort"])
        program, *words = [str(self.port) if word == port else word for word in command]
        return [str(BIN / program), *words]

    def start(self, name: str) -> None:
        command = self.words(container_of(name)["command"])
        self.started[name] = self.processes.start(command, cwd=APPLICATION, **self.environment(name))

    def told(self, name: str) -> str:
        """Return the logs of a pod and of the newest probe."""
        return f"a start of {name}\n{self.started[name].log()}\n{self.processes.started[-1].log()}"

    def passes(self, name: str, probe: str) -> bool:
        """Whether a probe of a pod passes now."""
        asked = container_of(name)[probe]
        if "httpGet" in asked:
            assert asked["httpGet"]["port"] == container_of("web")["ports"][0]["name"]
            return status_of(f"http://127.0.0.1:{self.port}{asked['httpGet']['path']}") == 200
        command = self.words(asked["exec"]["command"])
        return self.processes.start(command, cwd=APPLICATION, **self.environment(name)).wait() == 0


@pytest.fixture
def pods(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, empty_postgres_url: str, redis_url: str
) -> Iterator[Pods]:
    short = tmp_path_factory.mktemp("pods")  # the path of a socket has at most 107 bytes
    secrets = {"database_url": empty_postgres_url, "redis_url": redis_url, "tokens": TOKENS}
    with closing(Processes(tmp_path, {})) as processes:
        yield Pods(short, secrets, processes)


@pytest.mark.postgres
def test_every_command_starts_and_every_probe_passes_with_what_its_manifest_gives_it(pods: Pods) -> None:
    pods.start("migrate")
    [migrating] = pods.processes.started
    assert migrating.wait() == 0, migrating.log()
    for name in PODS[1:]:
        pods.start(name)

    for name in PODS[1:]:
        probe = container_of(name)["startupProbe"]
        patience = probe["periodSeconds"] * probe["failureThreshold"]
        wait_until(partial(pods.passes, name, "startupProbe"), timeout=patience, what=partial(pods.told, name))
    for name, probe in [
        ("worker", "livenessProbe"),
        ("dispatcher", "livenessProbe"),
        ("web", "livenessProbe"),
        ("web", "readinessProbe"),
    ]:
        assert pods.passes(name, probe), (name, probe)
    api = f"http://127.0.0.1:{pods.port}/api/v1/schedules/"
    with httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=SOON) as client:
        body = {"schedule_id": "greeting", "workflow": "greet", "args": ["Ada"], "interval": "1s"}
        created = client.post(api, json=body)
        assert created.status_code == 201, created.text
        wait_until(
            lambda: client.get(f"{api}greeting/").json()["success_count"] > 1, timeout=SOON, what="runs of jobs.py"
        )
    assert httpx.get(api, timeout=SOON).status_code == 401


needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="needs Prometheus (Debian: prometheus)")


@needs_prometheus
@pytest.mark.parametrize("waits", [False, True], ids=["nothing waits", "a run waits"])
def test_the_adapter_finds_how_long_the_queue_waits_in_prometheus_and_zero_while_nothing_does(
    web: Web, tmp_path: Path, waits: bool
) -> None:
    [rule] = yaml.safe_load((FOLDER / "by-queue-wait" / "adapter.yaml").read_text())["rules"]["external"]
    scaler = manifests("by-queue-wait")["HorizontalPodAutoscaler"]["rqsched-worker"]["spec"]
    *others, external = [one["external"] if one["type"] == "External" else one for one in scaler["metrics"]]
    assert [one["resource"]["name"] for one in others] == ["cpu"], "the base's is kept"
    assert external["metric"]["name"] == rule["name"]["as"]
    matchers = ",".join(f'{name}="{value}"' for name, value in external["metric"]["selector"]["matchLabels"].items())
    query = rule["metricsQuery"].replace("<<.LabelMatchers>>", matchers)
    web.create(interval="9h")
    if waits:
        web.post(at(operation="trigger/"))
        web.env.advance(MINUTE * 3)

    with served(web.app) as url, prometheus(url, tmp_path) as scraping:
        wait_until(lambda: scraping.ask(rule["seriesQuery"]), timeout=SOON, what="a scrape")

        assert scraping.ask(query) == [180.0 if waits else 0.0]
