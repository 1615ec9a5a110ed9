"""deploy/kubernetes/: a cluster accepts the files, and they keep what the worker promises."""

import re
import shutil
import subprocess
from copy import deepcopy
from ipaddress import ip_address, ip_network
from pathlib import Path

import crd_schema
import jsonschema
import pytest

from chunkflow_py.planning.prices import load_prices

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
LATEST, OLDEST = "1.37", "1.31"  # podFailurePolicy is stable since the latter
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
SCHEMAS = crd_schema.load()  # of kinds that are not part of Kubernetes


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
    if each["kind"] in SCHEMAS:
        jsonschema.validate(each, SCHEMAS[each["kind"]])
        if "jobTargetRef" not in each.get("spec", {}):
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


SQS = ["spec", "triggers", 0, "metadata"]
FLAVOR = ["spec", "resourceGroups", 0, "flavors", 0]


@pytest.mark.parametrize(
    ("name", "kind", "path", "value"),
    [
        ("deployment.yaml", "Deployment", ["apiVersion"], "extensions/v1beta1"),
        ("deployment.yaml", "Deployment", ["spec", "template", "spec", "gracePeriod"], 120),
        (
            "producer.yaml", "Job",
            ["spec", "template", "spec", "containers", 0, "args"], "submit",
        ),
        ("network.yaml", "NetworkPolicy", ["spec", "egres"], []),
        ("scaledjob.yaml", "ScaledJob", ["spec", "jobTargetRef", "backofLimit"], 2),
        ("scaledjob.yaml", "ScaledJob", [*SQS, "scaleOnInFlight"], True),
        ("scaledjob.yaml", "ScaledJob", [*SQS, "queueLenght"], "20"),
        ("scaledjob.yaml", "ScaledJob", ["spec", "scalingStrategy", "strategy"], "exact"),
        ("scaledjob.yaml", "ScaledJob", ["spec", "rollout", "strategy"], "default"),
        ("scaledjob.yaml", "TriggerAuthentication", ["spec", "podIdentity", "provider"], "amazon"),
        ("kueue-job.yaml", "Job", ["spec", "backoffLimitPerIdx"], 20),
        ("kueue-queues.yaml", "ClusterQueue", ["apiVersion"], "kueue.x-k8s.io/v1beta1"),
        ("kueue-queues.yaml", "ClusterQueue", ["spec", "cohort"], "all"),  # as in v1beta1
        ("kueue-queues.yaml", "ClusterQueue", ["spec", "queueingStrategy"], "FIFO"),
        ("kueue-queues.yaml", "ClusterQueue", [*FLAVOR, "resources", 0, "nominalQuota"], "32Gb"),
        ("kueue-queues.yaml", "LocalQueue", ["spec", "clusterQueue"], "Chunkflow"),
        ("kueue-queues.yaml", "ResourceFlavor", ["spec"], {"nodeLabel": {}}),
        ("kueue-queues.yaml", "WorkloadPriorityClass", ["value"], "high"),
        ("monitoring.yaml", "PodMonitor", ["spec", "endpoints"], []),  # as of a ServiceMonitor
        ("monitoring.yaml", "PodMonitor", ["spec", "podMetricsEndpoints", 0, "interval"], "30"),
    ],
)  # fmt: skip
def test_check_finds_mistakes(name, kind, path, value):
    """A removed version, an unknown field or a wrong value is found, also in custom resources."""
    damaged = deepcopy(resources(name))
    damaged = next(each for each in damaged if each["kind"] == kind)
    place = damaged
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.SchemaNotFoundError)):
        check(damaged, LATEST)


def test_schemas_come_from_definitions():
    """A schema rejects unknown fields of its definition's version, and has no status."""
    text = {"type": "string", "description": "for people", "default": "a"}
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "name": text,
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    "maybe": {"type": "string", "nullable": True},
                },
            },
            "status": {"type": "object"},
        },
    }
    versions = [
        {"name": "v1", "served": True, "schema": {"openAPIV3Schema": schema}},
        {"name": "v1beta1", "served": True, "deprecated": True},
    ]
    names = {"kind": "Thing"}
    definition = {"spec": {"group": "example.org", "names": names, "versions": versions}}
    kind, found = crd_schema.derived(definition, "v1")
    assert kind == "Thing"
    assert "for people" not in str(found)
    thing = {"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "a"}}
    jsonschema.validate(thing | {"spec": {"name": "b", "free": {"x": 1}, "maybe": None}}, found)
    for wrong in (
        {}, {"spec": {"nam": "b"}}, {"spec": {"name": None}}, {"spec": {}, "status": {}},
    ):  # fmt: skip
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(thing | wrong, found)
    with pytest.raises(AssertionError):
        crd_schema.derived(definition, "v1beta1")


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


@pytest.mark.parametrize("name", PODS)
def test_images_are_named_by_digest(name):
    """All pods of a run use the same image: a tag can mean another image on every node."""
    (container,) = PODS[name]["containers"]
    assert re.fullmatch(r"[a-z0-9./-]+@sha256:[0-9a-f]{64}", container["image"])


@pytest.mark.parametrize("name", WORKERS)
def test_records_name_the_image(name):
    """The worker is told the image that it runs in."""
    (container,) = WORKERS[name]["containers"]
    told = {each["name"]: each.get("value") for each in container["env"]}
    assert told["CHUNKFLOW_IMAGE"] == container["image"]


def test_the_page_enters_the_image_everywhere(tmp_path):
    """The command of the page replaces the image of every pod."""
    import yaml

    (command,) = re.findall(r"^sed --in-place .*$", (FOLDER / "README.md").read_text(), re.M)
    folder = tmp_path / "deploy" / "kubernetes"
    shutil.copytree(FOLDER, folder)
    image = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/em/chunkflow@sha256:{'a1' * 32}"
    subprocess.run(["bash", "-c", f"image={image}; {command}"], cwd=tmp_path, check=True)
    images = 0
    for name in FILES:
        for each in yaml.safe_load_all((folder / name).read_text()):
            check(each, LATEST)
        expected = (FOLDER / name).read_text().count("/chunkflow@sha256:")
        assert (folder / name).read_text().count(f": {image}\n") == expected
        images += expected
    assert images == len(PODS) + len(WORKERS)  # the records of workers name the image, too


def test_there_are_workers_of_all_kinds():
    """The checks below look at something."""
    assert set(WORKERS) == {
        "deployment.yaml Deployment", "scaledjob.yaml ScaledJob", "kueue-job.yaml Job",
    }  # fmt: skip


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
    told = {each["name"]: each["value"] for each in container["env"]}
    if "envFrom" in container:
        settings = resource("run.yaml", "ConfigMap")
        assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
        told |= settings["data"]
    assert set(told) == {"RUN", "COST_PER_HOUR", "AWS_DEFAULT_REGION", "CHUNKFLOW_IMAGE"}
    assert re.fullmatch(r"s3://\S+\.run#sha256=[0-9a-f]{64}", told["RUN"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "--task-limit=auto" in options(pod)
    assert "--cost-per-hour=$(COST_PER_HOUR)" in options(pod)
    assert float(told["COST_PER_HOUR"]) == load_prices().instance("g6.xlarge").hour


@pytest.mark.parametrize("name", WORKERS)
def test_a_stalled_worker_is_started_again(name):
    """Probes ask the port of the metrics, which the kubelet and Prometheus can reach."""
    (container,) = WORKERS[name]["containers"]
    (port,) = container["ports"]
    assert {f"--metrics-port={port['containerPort']}", "--metrics-address=0.0.0.0"} <= set(
        options(WORKERS[name])
    )
    live, start = container["livenessProbe"], container["startupProbe"]
    assert live["httpGet"] == start["httpGet"] == {"path": "/health", "port": port["name"]}
    # Patient with a machine that is short of time, but sooner than a lease times max-failures.
    assert 60 <= live["periodSeconds"] * live["failureThreshold"] <= 360
    assert start["periodSeconds"] * start["failureThreshold"] >= 300


def test_prometheus_reads_all_workers():
    """The monitor selects the pods of every kind of worker, and the port that they have."""
    from chunkflow_py.monitor.worker_metrics import Metrics

    spec = resource("monitoring.yaml", "PodMonitor")["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    for name, pod in WORKERS.items():
        assert spec["selector"]["matchLabels"].items() <= METADATA[name]["labels"].items()
        assert endpoint["port"] in {port["name"] for port in pod["containers"][0]["ports"]}
    with Metrics("mem://run", "worker").served(0) as url:
        assert url.endswith(endpoint["path"])


CLUSTER, PROMETHEUS = ({"kubernetes.io/metadata.name": n} for n in ("kube-system", "monitoring"))


def may_connect(direction, pod, port, protocol="TCP", address=None, namespace=None):
    """Return whether the policies allow a pod a direction: to connect, or to be connected to.

    The other end has an address, or is in a namespace with labels.
    """

    def matches(peer):
        if "ipBlock" in peer:
            return address and ip_address(address) in ip_network(peer["ipBlock"]["cidr"])
        selector = peer["namespaceSelector"]["matchLabels"]
        return namespace is not None and selector.items() <= namespace.items()

    isolated = False
    for policy in resources("network.yaml"):
        spec = policy["spec"]
        if not spec["podSelector"].get("matchLabels", {}).items() <= pod.items():
            continue
        isolated |= direction.title() in spec["policyTypes"]
        for rule in spec.get(direction, []):
            peers = rule.get({"egress": "to", "ingress": "from"}[direction])
            if {"port": port, "protocol": protocol} in rule["ports"] and (
                peers is None or any(map(matches, peers))
            ):
                return True
    return not isolated


@pytest.mark.parametrize("name", [name for name in PODS if "args" in PODS[name]["containers"][0]])
def test_pods_reach_what_they_need(name):
    """Pods reach storage, queue, names, notices and credentials; Prometheus reaches metrics."""
    pod = METADATA[name]["labels"]
    assert may_connect("egress", pod, 443, address="52.216.0.1")  # S3
    assert may_connect("egress", pod, 443, address="10.0.3.7")  # SQS by a private endpoint
    for protocol in ("UDP", "TCP"):
        assert may_connect("egress", pod, 53, protocol, namespace=CLUSTER)
    assert may_connect("egress", pod, 80, address="169.254.169.254")
    assert may_connect("egress", pod, 80, address="169.254.170.23")
    assert may_connect("egress", pod, 988, address="169.254.169.252")
    assert may_connect("ingress", pod, "metrics", namespace=PROMETHEUS)


@pytest.mark.parametrize("name", PODS)
def test_pods_reach_nothing_else(name):
    """A model's code finds no other service of the cluster, and no other pod finds the pods."""
    pod = METADATA[name].get("labels", {})
    for port, address in ((80, "10.0.0.1"), (6379, "10.0.0.1"), (22, "169.254.169.254")):
        assert not may_connect("egress", pod, port, address=address)
    assert not may_connect("egress", pod, 53, "UDP", address="8.8.8.8")
    assert not may_connect("ingress", pod, "metrics", namespace=CLUSTER)
    assert not may_connect("ingress", pod, "http", namespace=PROMETHEUS)
    if "args" not in PODS[name]["containers"][0]:  # files are copied through the kubelet
        assert not may_connect("egress", pod, 443, address="52.216.0.1")


@pytest.mark.parametrize("name", PODS)
def test_pods_need_what_the_page_asks_for_only(name):
    """No pod waits for a label that the components named in README.md do not make."""
    assert "nodeSelector" not in PODS[name]
    assert "affinity" not in PODS[name]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("deployment.yaml", ["template", "spec", "nodeSelector"]),
        ("scaledjob.yaml", ["jobTargetRef", "template", "spec", "nodeSelector"]),
        ("kueue-queues.yaml", ["nodeLabels"]),
    ],
)
def test_one_model_of_gpu_can_be_chosen(name, place):
    """The selector that a cluster of several models needs is there as a comment, and works."""
    import yaml

    lines = (FOLDER / name).read_text().splitlines()
    selects = re.compile(r"spec:|  nodeLabels:|nodeSelector:|  +nvidia.com/gpu.product: NVIDIA-L4")
    enabled = (
        line.replace("# ", "", 1) if selects.fullmatch(line.strip().removeprefix("# ")) else line
        for line in lines
    )
    found = []
    for each in yaml.safe_load_all("\n".join(enabled)):
        check(each, LATEST)
        part = each.get("spec", {})
        for step in place:
            part = part.get(step, {})
        found += [part] if part else []
    assert found == [{"nvidia.com/gpu.product": "NVIDIA-L4"}]
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


# --- Kueue ---------------------------------------------------------------------------------------

KUEUE = "kueue.x-k8s.io"


def quantity(text):
    """Return the number of a quantity without a unit, or in Gi."""
    return int(str(text).removesuffix("Gi"))


def test_queued_job_is_known_to_kueue():
    """The job's queue leads to quotas, which another namespace cannot use."""
    job, queue = resource("kueue-job.yaml", "Job"), resource("kueue-queues.yaml", "LocalQueue")
    cluster = resource("kueue-queues.yaml", "ClusterQueue")
    assert job["metadata"]["labels"] == {f"{KUEUE}/queue-name": queue["metadata"]["name"]}
    assert job["metadata"]["namespace"] == queue["metadata"]["namespace"] == "chunkflow"
    assert queue["spec"]["clusterQueue"] == cluster["metadata"]["name"]
    namespace = cluster["spec"]["namespaceSelector"]["matchLabels"]
    assert namespace == {"kubernetes.io/metadata.name": "chunkflow"}
    ((flavor,),) = (group["flavors"] for group in cluster["spec"]["resourceGroups"])
    assert flavor["name"] == resource("kueue-queues.yaml", "ResourceFlavor")["metadata"]["name"]


def test_quota_covers_the_job():
    """Kueue never admits a job that requests a resource without a quota, or more than it."""
    spec = resource("kueue-job.yaml", "Job")["spec"]
    (group,) = resource("kueue-queues.yaml", "ClusterQueue")["spec"]["resourceGroups"]
    quotas = {each["name"]: each["nominalQuota"] for each in group["flavors"][0]["resources"]}
    assert list(quotas) == group["coveredResources"]
    requested = WORKERS["kueue-job.yaml Job"]["containers"][0]["resources"]
    needed = requested["limits"] | requested["requests"]
    assert set(needed) == set(quotas)
    workers = {name: quantity(quotas[name]) // quantity(n) for name, n in needed.items()}
    assert len(set(workers.values())) == 1  # no quota is in the way of another
    assert workers["nvidia.com/gpu"] >= spec["parallelism"]


def test_urgent_jobs_preempt_others():
    """The label that the job has as a comment names a class, and the queue preempts by priority."""
    text = (FOLDER / "kueue-job.yaml").read_text()
    (label,) = re.findall(rf"# {KUEUE}/priority-class: (\S+)", text)
    urgent = resource("kueue-queues.yaml", "WorkloadPriorityClass")
    assert urgent["metadata"]["name"] == label
    assert urgent["value"] > 0  # that of a job without the label
    preemption = resource("kueue-queues.yaml", "ClusterQueue")["spec"]["preemption"]
    assert preemption["withinClusterQueue"] == "LowerPriority"


def test_queued_job_starts_with_the_workers_that_fit():
    """Kueue may start some of the workers; its webhook demands these three to agree."""
    job = resource("kueue-job.yaml", "Job")
    spec, annotations = job["spec"], job["metadata"]["annotations"]
    assert spec["suspend"]
    assert 0 < int(annotations[f"{KUEUE}/job-min-parallelism"]) < spec["parallelism"]
    assert annotations[f"{KUEUE}/job-completions-equal-parallelism"] == "true"
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])


def test_queued_job_goes_on_while_work_is_left():
    """A stop with work left (75) is followed by a new pod; a run that is refused ends the job."""
    spec = resource("kueue-job.yaml", "Job")["spec"]
    disrupted, complete, refused = spec["podFailurePolicy"]["rules"]
    assert disrupted["action"] == "Ignore"
    assert (complete["action"], complete["onExitCodes"]["values"]) == ("FailIndex", [1])
    assert (refused["action"], refused["onExitCodes"]["values"]) == ("FailJob", [2])
    assert spec["backoffLimitPerIndex"] > 0
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # what the policy demands
    assert not any(option.startswith("--idle-exit") for option in options(pod))
