"""deploy/kubernetes/: a cluster accepts the files, and they keep what the worker promises."""

import re
from copy import deepcopy
from pathlib import Path

import jsonschema
import pytest
from keda_schema import KINDS

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
LATEST, OLDEST = "1.37", "1.31"  # podFailurePolicy is stable since the latter
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))


def resources(name):
    """Return the resources of a file."""
    import yaml

    return [each for each in yaml.safe_load_all((FOLDER / name).read_text()) if each]


def resource(name, kind):
    """Return the only resource of a kind in a file."""
    (found,) = (each for each in resources(name) if each["kind"] == kind)
    return found


def check(each, version):
    """Raise an error unless a cluster would accept the resource."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    if each["kind"] in KINDS:
        jsonschema.validate(each, KINDS[each["kind"]])
        if "jobTargetRef" not in each["spec"]:
            return
        each = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": each["metadata"],
            "spec": each["spec"]["jobTargetRef"],
        }
    # A kind that this version does not have, or has no more, is an error too.
    kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("version", [OLDEST, LATEST])
@pytest.mark.parametrize("name", FILES)
def test_files_are_valid(name, version):
    """Every resource has known fields only, and a version of its kind that is still served."""
    for each in resources(name):
        check(each, version)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("deployment.yaml", ["apiVersion"], "extensions/v1beta1"),
        ("deployment.yaml", ["spec", "template", "spec", "gracePeriod"], 120),
        ("producer.yaml", ["spec", "template", "spec", "containers", 0, "args"], "submit"),
        ("scaledjob.yaml", ["spec", "jobTargetRef", "backofLimit"], 2),
        ("scaledjob.yaml", ["spec", "triggers", 0, "metadata", "scaleOnInFlight"], True),
        ("scaledjob.yaml", ["spec", "scalingStrategy", "strategy"], "exact"),
    ],
)
def test_check_finds_mistakes(name, path, value):
    """A removed version, an unknown field and a wrong type are found, also within KEDA's kinds."""
    damaged = deepcopy(resources(name)[-1])
    place = damaged
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.SchemaNotFoundError)):
        check(damaged, LATEST)


def pods():
    """Yield (name, metadata, specification) of every pod that the files make."""
    for name in FILES:
        for each in resources(name):
            spec = each.get("spec", {})
            spec = spec.get("jobTargetRef", spec)
            if each["kind"] == "Pod" or "template" in spec:
                pod = each if each["kind"] == "Pod" else spec["template"]
                yield f"{name} {each['kind']}", pod["metadata"], pod["spec"]


PODS = {name: pod for name, _, pod in pods()}
METADATA = {name: metadata for name, metadata, _ in pods()}
WORKERS = {
    name: pod
    for name, pod in PODS.items()
    if METADATA[name].get("labels", {}).get("app.kubernetes.io/component") == "worker"
}


def options(pod):
    """Return the words after the program's name."""
    return pod["containers"][0]["args"]


@pytest.mark.parametrize("name", PODS)
def test_pods_have_no_privilege(name):
    """No pod is root, can become it, or can write to its image; the cache has a place."""
    pod = PODS[name]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert volumes == {mount["name"] for mount in container["volumeMounts"]}
    if "args" in container:
        assert {"/cache", "/tmp"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


def test_there_are_workers_of_both_kinds():
    """The checks below look at something."""
    assert set(WORKERS) == {"deployment.yaml Deployment", "scaledjob.yaml ScaledJob"}


@pytest.mark.parametrize("name", WORKERS)
def test_workers_have_time_to_drain(name):
    """The cluster waits longer than the worker needs, and no longer than a spot notice lasts."""
    pod = WORKERS[name]
    (grace,) = (int(o.partition("=")[2]) for o in options(pod) if o.startswith("--grace="))
    assert grace + 15 <= pod["terminationGracePeriodSeconds"] <= 120


@pytest.mark.parametrize("name", WORKERS)
def test_workers_are_told_the_run_and_a_gpu(name):
    """A worker is told the run by its URL with the digest, has a GPU, and bounds a hang."""
    pod = WORKERS[name]
    container = pod["containers"][0]
    assert options(pod)[:3] == ["work", "$(RUN)", "--gpus=all"]
    told = resource("run.yaml", "ConfigMap")
    assert container["envFrom"] == [{"configMapRef": {"name": told["metadata"]["name"]}}]
    assert re.fullmatch(r"s3://\S+\.run#sha256=[0-9a-f]{64}", told["data"]["RUN"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "--task-limit=auto" in options(pod)


@pytest.mark.parametrize("name", PODS)
def test_pods_need_what_the_page_asks_for_only(name):
    """No pod waits for a label that the components named in README.md do not make."""
    assert "nodeSelector" not in PODS[name]
    assert "affinity" not in PODS[name]


@pytest.mark.parametrize("name", WORKERS)
def test_one_model_of_gpu_can_be_chosen(name):
    """The selector that a cluster of several models needs is there as a comment, and works."""
    file = name.partition(" ")[0]
    text = (FOLDER / file).read_text()
    enabled = re.sub(r"# (nodeSelector:)\n( +)# (  nvidia)", r"\1\n\2\3", text)
    import yaml

    (spec,) = (
        each["spec"].get("jobTargetRef", each["spec"])
        for each in yaml.safe_load_all(enabled)
        if each["kind"] in ("Deployment", "ScaledJob")
    )
    selector = spec["template"]["spec"]["nodeSelector"]
    assert selector == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert "GPU Feature Discovery" in " ".join((FOLDER / "README.md").read_text().split())


@pytest.mark.parametrize("name", [name for name in PODS if "args" in PODS[name]["containers"][0]])
def test_pods_are_not_evicted_for_order(name):
    """No autoscaler moves a pod amid a task, and no node fills its disk with their volumes."""
    assert METADATA[name]["annotations"] == {
        "karpenter.sh/do-not-disrupt": "true",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    }
    needed = sum(
        int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi"))
        for volume in PODS[name]["volumes"]
        if "emptyDir" in volume
    )
    resources = PODS[name]["containers"][0]["resources"]
    for kind in ("requests", "limits"):
        assert int(resources[kind]["ephemeral-storage"].removesuffix("Gi")) > needed


def test_identities_are_apart():
    """Producer and workers have service accounts of their own, each with a role of its own."""
    roles = {
        each["metadata"]["name"]: each["metadata"]["annotations"]["eks.amazonaws.com/role-arn"]
        for each in resources("identity.yaml")
        if each["kind"] == "ServiceAccount"
    }
    assert len(set(roles.values())) == 2
    assert {pod["serviceAccountName"] for pod in WORKERS.values()} == {"chunkflow-worker"}
    assert PODS["producer.yaml Job"]["serviceAccountName"] == "chunkflow-producer"
    assert set(roles) == {"chunkflow-worker", "chunkflow-producer"}


def test_deployment_idles():
    """Its workers outlive a run, as a pod that ends would only be started again."""
    deployment = WORKERS["deployment.yaml Deployment"]
    assert "--no-until-complete" in options(deployment)
    assert not any(option.startswith("--idle-exit") for option in options(deployment))


def test_scaled_job_counts_messages_in_flight():
    """Jobs are wanted for visible and in-flight messages, less the jobs that run."""
    spec = resource("scaledjob.yaml", "ScaledJob")["spec"]
    (trigger,) = spec["triggers"]
    assert trigger["metadata"]["scaleOnInFlight"] == "true"
    assert spec["scalingStrategy"]["strategy"] == "default"  # `accurate` would count them twice
    authentication = resource("scaledjob.yaml", "TriggerAuthentication")
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert spec["rollout"]["strategy"] == "gradual"


def test_scaled_job_does_not_repeat_what_ended_on_purpose():
    """Exit codes of the worker end its job; a lost node does not count, a crash is tried again."""
    job = resource("scaledjob.yaml", "ScaledJob")["spec"]["jobTargetRef"]
    disrupted, on_purpose = job["podFailurePolicy"]["rules"]
    assert disrupted["action"] == "Ignore"
    assert disrupted["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert on_purpose["action"] == "FailJob"
    assert on_purpose["onExitCodes"]["values"] == [1, 2, 75]
    assert job["backoffLimit"] > 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # what the policy demands
