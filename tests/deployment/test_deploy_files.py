"""The files in deploy/ are what they say: their commands and settings are Kairos', and what one names another has."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from support.command_words import parse_words
from support.deployment import DEPLOY, NAME, compose, manifest, require_haproxy

from kairos_mcp.settings.names import VARIABLES
from kairos_mcp.settings.schema import read_environment

COMPOSE = compose()
OURS = {name: service for name, service in COMPOSE["services"].items() if service["image"] == "kairos"}
OBJECTS = manifest()


def pods() -> Iterator[dict[str, Any]]:
    for each in OBJECTS:
        if each["kind"] in ("Deployment", "Job"):
            yield each["spec"]["template"]["spec"]
        elif each["kind"] == "CronJob":
            yield each["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def object_of(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def containers(name: str) -> dict[str, Any]:
    found: dict[str, Any] = object_of("Deployment", name)["spec"]["template"]["spec"]["containers"][0]
    return found


def test_the_commands_are_taken_as_they_stand() -> None:
    web, work = (parse_words([str(word) for word in OURS[name]["command"]]) for name in ("web", "work"))
    assert (web["transport"], web["drive"], web["allow_host"]) == ("http", False, [NAME])
    assert work["slots"] == 64
    parse_words(OURS["migrate"]["command"])
    job = object_of("Job", "migrate")["spec"]["template"]["spec"]["containers"][0]
    assert job["args"] == OURS["migrate"]["command"]
    assert [containers(name)["args"] for name in ("web", "work")] == [OURS[name]["command"] for name in ("web", "work")]


def test_a_worker_is_given_longer_than_it_takes_to_end() -> None:
    grace = parse_words([str(word) for word in OURS["work"]["command"]])["grace"]
    assert grace < int(OURS["work"]["stop_grace_period"].removesuffix("s"))
    assert grace < object_of("Deployment", "work")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


def test_every_variable_is_a_setting_with_a_value_that_it_takes() -> None:
    for environ in (OURS["web"]["environment"], object_of("ConfigMap", "kairos")["data"]):
        ours = {name: value for name, value in environ.items() if not name.startswith("OTEL_")}
        assert set(ours) <= set(VARIABLES)
        read = read_environment({name: value for name, value in ours.items() if name != "KAIROS_WORKSPACE"})
        assert read["telemetry"] is True
        assert environ["OTEL_METRICS_EXPORTER"] == "prometheus"
        assert {name for name in environ if name not in ours} == {
            *("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_PROMETHEUS_HOST")
        }
    assert OURS["web"]["environment"] == OURS["work"]["environment"] == OURS["migrate"]["environment"]


def test_what_a_service_names_is_defined() -> None:
    for service in COMPOSE["services"].values():
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])
        assert set(service.get("depends_on", ())) <= set(COMPOSE["services"])
        named = [volume.partition(":")[0] for volume in service.get("volumes", ())]
        assert all(name in COMPOSE["volumes"] or (DEPLOY / name).is_file() for name in named)
    environ = OURS["web"]["environment"]
    references = [value for value in environ.values() if str(value).startswith("file:")]
    assert [Path(reference).name in OURS["web"]["secrets"] for reference in references] == [True, True]


def test_what_an_object_names_is_there_or_made_by_hand_before() -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
    for pod in pods():
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
        for volume in pod["volumes"]:
            if "persistentVolumeClaim" in volume:
                object_of("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
            elif "secret" in volume:
                assert f"kubectl create secret generic {volume['secret']['secretName']} " in text
            else:
                assert f"kubectl create configmap {volume['configMap']['name']} " in text
    for each in OBJECTS:
        if each["kind"] == "Deployment":
            assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]
        elif each["kind"] == "Service":
            object_of("Deployment", each["spec"]["selector"]["app"])
    (scaled,) = [each["spec"]["scaleTargetRef"] for each in OBJECTS if each["kind"] == "HorizontalPodAutoscaler"]
    object_of(scaled["kind"], scaled["name"])
    assert object_of("PersistentVolumeClaim", "files")["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_probes_ask_what_the_server_answers() -> None:
    web = containers("web")
    asked = [web[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")]
    assert asked == ["/readyz", "/healthz"]
    assert "/readyz" in OURS["web"]["healthcheck"]["test"][-1]
    assert "sleep" in web["lifecycle"]["preStop"]["exec"]["command"]


def test_haproxy_takes_its_file(tmp_path: Path) -> None:
    haproxy = require_haproxy()
    trustme.CA().issue_cert(NAME).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "tls.pem"))
    environ = {"TLS_PEM": str(tmp_path / "tls.pem"), "SERVERS": COMPOSE["services"]["proxy"]["environment"]["SERVERS"]}
    words = [haproxy, "-c", "-f", str(DEPLOY / "haproxy.cfg")]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


def test_docker_compose_takes_its_file(tmp_path: Path) -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("needs docker-compose: apt-get install docker-compose")
    shutil.copy(DEPLOY / "compose.yaml", tmp_path)
    words = [program, "-f", str(tmp_path / "compose.yaml"), "config", "--services"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(COMPOSE["services"])


def test_nothing_that_runs_for_long_is_without_bounds() -> None:
    for name in COMPOSE["services"].keys() - {"db", "migrate"}:  # the database has the machine, or one of its own
        assert COMPOSE["services"][name]["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}, name
    for pod in pods():
        resources = pod["containers"][0]["resources"]
        assert resources["requests"].keys() == {"cpu", "memory"}, pod
        assert "memory" in resources["limits"], pod


def test_the_schemas_of_kubernetes_take_the_objects() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate: pip install it")
    for each in OBJECTS:
        validate.validate(each, "1.37", strict=True)


def test_a_drained_node_leaves_servers_and_workers_and_their_pods_are_reached_by_few() -> None:
    for name in ("web", "work"):
        labels = object_of("Deployment", name)["spec"]["template"]["metadata"]["labels"]
        budget, policy = (object_of(kind, name)["spec"] for kind in ("PodDisruptionBudget", "NetworkPolicy"))
        assert budget["selector"]["matchLabels"] == policy["podSelector"]["matchLabels"] == labels
        assert budget["maxUnavailable"] < object_of("Deployment", name)["spec"]["replicas"]
        assert policy["policyTypes"] == ["Ingress"]
    (to_web,), (to_work,) = (object_of("NetworkPolicy", name)["spec"]["ingress"] for name in ("web", "work"))
    for rule, name in ((to_web, "web"), (to_work, "work")):
        assert rule["ports"] == [{"port": containers(name)["ports"][0]["containerPort"]}]
    assert to_web["from"][0]["podSelector"]["matchLabels"] == {"app": "proxy"}
    assert to_web["from"][1:] == to_work["from"]  # Prometheus


def test_a_workers_probe_looks_at_the_file_that_it_touches() -> None:
    heartbeat = str(parse_words([str(word) for word in OURS["work"]["command"]])["heartbeat"])
    probes = [" ".join(containers("work")[name]["exec"]["command"]) for name in ("readinessProbe", "livenessProbe")]
    assert all(heartbeat in probe for probe in (*probes, OURS["work"]["healthcheck"]["test"][-1]))


def test_backups_are_made_with_the_script_that_is_here() -> None:
    service, job = COMPOSE["services"]["backup"], object_of("CronJob", "backup")["spec"]["jobTemplate"]["spec"]
    (made,) = job["template"]["spec"]["containers"]
    assert "/backup.sh" in service["entrypoint"][-1]
    assert "./backup.sh:/backup.sh:ro" in service["volumes"]
    assert made["command"] == ["sh", "/scripts/backup.sh"]
    named = set(service["environment"]) | {each["name"] for each in made["env"]}
    text = (DEPLOY / "backup.sh").read_text(encoding="utf-8")
    assert all(name in text for name in named)


def test_prometheus_reads_the_servers_the_workers_and_the_rules_that_are_here() -> None:
    folder, service = DEPLOY / "prometheus", COMPOSE["services"]["prometheus"]
    mounted = dict(volume.split(":")[:2][::-1] for volume in service["volumes"])
    found = {}
    for name in ("prometheus.yml", "kubernetes.yml"):
        settings = yaml.safe_load((folder / name).read_text(encoding="utf-8"))
        assert all((DEPLOY / mounted[file]).is_file() for file in settings["rule_files"])
        found[name] = {job["job_name"]: job for job in settings["scrape_configs"]}
        assert found[name].keys() == {"kairos", "kairos-workers"}
        assert "authorization" in found[name]["kairos"]
    jobs = {job: each["dns_sd_configs"][0] for job, each in found["prometheus.yml"].items()}
    assert {job: (each["names"], each["port"]) for job, each in jobs.items()} == {
        "kairos": (["web"], 8765),
        "kairos-workers": (["work"], 9464),
    }
    kept = {job: each["relabel_configs"][0]["regex"] for job, each in found["kubernetes.yml"].items()}
    ports = {name: containers(name)["ports"][0]["containerPort"] for name in ("web", "work")}
    assert kept == {"kairos": f"web;{ports['web']}", "kairos-workers": f"work;{ports['work']}"}
    credentials = found["prometheus.yml"]["kairos"]["authorization"]["credentials_file"]
    assert Path(credentials).name in service["secrets"]


def test_promtool_takes_the_settings_of_prometheus() -> None:  # Debian's knows no Kubernetes
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    words = [program, "check", "config", "--syntax-only", str(DEPLOY / "prometheus" / "prometheus.yml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
