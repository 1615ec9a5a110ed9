"""deploy/aws/: the stack is valid, comes into being, and grants what is needed and no more."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from rigs.s3 import environment

TEMPLATE = Path(__file__).parents[2] / "deploy" / "aws" / "fleet.yaml"
DIGEST = "#sha256=" + "0" * 64
MACHINE_IMAGE = "/chunkflow/machine-image"


def test_template_has_no_findings():
    """cfn-lint has nothing to say of the template."""
    program = Path(sys.executable).with_name("cfn-lint")
    if not program.exists():
        pytest.skip("cfn-lint not installed; pip install cfn-lint")
    done = subprocess.run([program, TEMPLATE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture
def clients(request, monkeypatch, tmp_path_factory):
    """Return a function that makes clients of an emulator by the service's name."""
    import boto3

    server = request.getfixturevalue(request.param)
    address = server if isinstance(server, str) else server.address
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment(address, tmp_path_factory.getbasetemp()).items():
        monkeypatch.setenv(name, value)
    session = boto3.session.Session()
    made = []

    def client(service):
        made.append(session.client(service))
        return made[-1]

    yield client
    for each in made:
        each.close()


def create(clients, name, **parameters):
    """Create the stack; return its outputs when it is complete."""
    clients("ssm").put_parameter(
        Name=MACHINE_IMAGE, Type="String", Overwrite=True,
        Value=clients("ec2").describe_images()["Images"][0]["ImageId"],
    )  # fmt: skip
    # moto looks for the default as well, which only AWS has.
    body = re.sub(r"/aws/service/\S+/ami-id", MACHINE_IMAGE, TEMPLATE.read_text())
    subnets = clients("ec2").describe_subnets()["Subnets"][:2]
    parameters |= {
        "QueueName": name,
        "BucketName": f"{name}-bucket",
        "CreateBucket": "yes",
        "InputBucketName": f"{name}-input",
        "VpcId": subnets[0]["VpcId"],
        "SubnetIds": ",".join(subnet["SubnetId"] for subnet in subnets),
    }
    stacks = clients("cloudformation")
    stacks.create_stack(
        StackName=name, TemplateBody=body, Capabilities=["CAPABILITY_IAM"],
        Parameters=[
            {"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()
        ],
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while True:
        (stack,) = stacks.describe_stacks(StackName=name)["Stacks"]
        if not stack["StackStatus"].endswith("IN_PROGRESS") or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert stack["StackStatus"] == "CREATE_COMPLETE", stacks.describe_stack_events(StackName=name)
    return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}


def group_of(clients, outputs):
    """Return the Auto Scaling group of a stack."""
    (group,) = clients("autoscaling").describe_auto_scaling_groups(
        AutoScalingGroupNames=[outputs["Workers"]]
    )["AutoScalingGroups"]
    return group


def template_of(clients, name):
    """Return what the launch template of a stack says."""
    ec2 = clients("ec2")
    made = clients("cloudformation").describe_stack_resources(StackName=name)["StackResources"]
    (identifier,) = (
        each["PhysicalResourceId"]
        for each in made
        if each.get("LogicalResourceId") == "WorkerTemplate"  # moto leaves some without
    )
    versions = ec2.describe_launch_template_versions(LaunchTemplateId=identifier)
    return versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]


@pytest.mark.aws
@pytest.mark.parametrize("clients", ["ministack_address", "moto"], indirect=True)
def test_stack_is_created(clients):
    """Queues, bucket, roles and fleet come into being, tied to each other as they have to be."""
    run = "s3://fleet-bucket/affinity.run" + DIGEST
    outputs = create(clients, "fleet", Run=run, Image="registry.example.org/chunkflow:1")
    sqs = clients("sqs")
    address = sqs.get_queue_url(QueueName=outputs["Queue"].removeprefix("sqs://"))["QueueUrl"]
    attributes = sqs.get_queue_attributes(QueueUrl=address, AttributeNames=["All"])["Attributes"]
    redrive = json.loads(attributes["RedrivePolicy"])
    assert redrive["deadLetterTargetArn"].endswith(":fleet-dead")
    assert int(redrive["maxReceiveCount"]) == 1000
    assert attributes["VisibilityTimeout"] == "120"
    clients("s3").head_bucket(Bucket="fleet-bucket")

    launched = template_of(clients, "fleet")
    assert launched["MetadataOptions"]["HttpTokens"] == "required"
    assert int(launched["MetadataOptions"]["HttpPutResponseHopLimit"]) == 2
    script = base64.b64decode(launched["UserData"]).decode()
    assert f"work '{run}' --gpus all --grace 90" in script
    group = group_of(clients, outputs)
    assert (group["MinSize"], group["DesiredCapacity"], group["MaxSize"]) == (0, 1, 20)
    assert len(group["VPCZoneIdentifier"].split(",")) == 2

    iam = clients("iam")
    attached = {}
    for role in ("ProducerRole", "WorkerRole"):
        policies = iam.list_attached_role_policies(RoleName=outputs[role].rpartition("/")[2])
        attached[role] = [each["PolicyArn"] for each in policies["AttachedPolicies"]]
    assert attached == {
        "ProducerRole": [outputs["ProducerPolicy"]],
        "WorkerRole": [outputs["WorkerPolicy"]],
    }


@pytest.mark.aws
@pytest.mark.parametrize("clients", ["ministack_address"], indirect=True)
def test_fleet_grows_with_backlog_and_drains(clients):
    """Growth is by visible plus in-flight tasks a worker; nothing but workers ends a worker."""
    outputs = create(clients, "grown", Run="s3://b/r.run" + DIGEST, Image="chunkflow:1")
    scaling = clients("autoscaling")
    (policy,) = scaling.describe_policies(AutoScalingGroupName=outputs["Workers"])[
        "ScalingPolicies"
    ]
    target = policy["TargetTrackingConfiguration"]
    metrics = {each["Id"]: each for each in target["CustomizedMetricSpecification"]["Metrics"]}
    names = {
        each["MetricStat"]["Metric"]["MetricName"]: name
        for name, each in metrics.items()
        if "MetricStat" in each
    }
    visible = names["ApproximateNumberOfMessagesVisible"]
    in_flight = names["ApproximateNumberOfMessagesNotVisible"]
    (expression,) = (each["Expression"] for each in metrics.values() if each["ReturnData"])
    assert f"({visible} + {in_flight}) / " in expression
    assert target["DisableScaleIn"] is True
    (hook,) = scaling.describe_lifecycle_hooks(AutoScalingGroupName=outputs["Workers"])[
        "LifecycleHooks"
    ]
    assert hook["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
    script = base64.b64decode(template_of(clients, "grown")["UserData"]).decode()
    grace = int(re.search(r"--grace (\d+)", script)[1])
    waits = int(re.search(r"docker stop -t (\d+)", script)[1])
    assert grace < waits < hook["HeartbeatTimeout"]


@pytest.mark.aws
@pytest.mark.parametrize("clients", ["ministack_address"], indirect=True)
def test_stack_without_run_has_no_workers(clients):
    """Before a run is submitted there is a queue to submit it to, and no machine to pay for."""
    group = group_of(clients, create(clients, "empty"))
    assert (group["DesiredCapacity"], group["MaxSize"]) == (0, 0)


def granted(document, action, resource):
    """Return whether a policy grants an action on a resource."""

    def several(value):
        return [value] if isinstance(value, str) else value

    return any(
        any(fnmatchcase(action, pattern) for pattern in several(statement["Action"]))
        and any(fnmatchcase(resource, pattern) for pattern in several(statement["Resource"]))
        for statement in document["Statement"]
        if statement["Effect"] == "Allow"
    )


RUN, OUTPUT, INPUT = (
    "arn:aws:s3:::least-bucket/affinity.run", "arn:aws:s3:::least-bucket/affinity.zarr",
    "arn:aws:s3:::least-input/image.zarr",
)  # fmt: skip
VERBS = "Get", "Put", "Delete"
QUEUE, DEAD = ":least", ":least-dead"
NEEDED = {
    "WorkerPolicy": [
        *[("sqs:" + verb, QUEUE) for verb in (
            "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes",
            "GetQueueUrl",
        )],
        ("sqs:SendMessage", DEAD),
        ("s3:GetObject", f"{RUN}/spec.json"), ("s3:GetObject", f"{INPUT}/0/c/0/0/0"),
        ("s3:ListBucket", "arn:aws:s3:::least-bucket"),
        ("s3:ListBucket", "arn:aws:s3:::least-input"),
        *[(f"s3:{verb}Object", f"{RUN}/ledger/infer/loose/0/7") for verb in VERBS],
        *[(f"s3:{verb}Object", f"{OUTPUT}/c/0/0/0") for verb in VERBS],
        ("s3:PutObject", f"{RUN}/stages/infer/closed"),
    ],
    "ProducerPolicy": [
        ("sqs:SendMessage", QUEUE), ("sqs:GetQueueUrl", QUEUE), ("sqs:GetQueueAttributes", QUEUE),
        ("sqs:ReceiveMessage", DEAD),
        *[(f"s3:{verb}Object", f"{RUN}/spec.json") for verb in VERBS],
        *[(f"s3:{verb}Object", f"{OUTPUT}/zarr.json") for verb in VERBS],
        ("s3:GetObject", f"{INPUT}/zarr.json"),
    ],
}  # fmt: skip
REFUSED = {
    "WorkerPolicy": [
        ("sqs:SendMessage", QUEUE), ("sqs:CreateQueue", QUEUE), ("sqs:PurgeQueue", QUEUE),
        ("sqs:DeleteMessage", DEAD), ("sqs:ReceiveMessage", ":another"),
        ("s3:PutObject", f"{RUN}/spec.json"), ("s3:PutObject", f"{RUN}/files/00/unet.py"),
        ("s3:PutObject", f"{RUN}/plan/infer"), ("s3:DeleteObject", f"{RUN}/spec.json"),
        ("s3:DeleteObject", f"{RUN}/stages/infer/closed"),
        ("s3:PutObject", f"{INPUT}/0/c/0/0/0"), ("s3:DeleteObject", f"{INPUT}/0/c/0/0/0"),
        ("s3:GetObject", "arn:aws:s3:::least-bucket/other"), ("s3:DeleteBucket", OUTPUT),
        ("iam:PassRole", "*"),
    ],
    "ProducerPolicy": [
        ("sqs:ReceiveMessage", QUEUE), ("sqs:DeleteMessage", QUEUE), ("sqs:PurgeQueue", QUEUE),
        ("s3:PutObject", f"{INPUT}/zarr.json"), ("s3:DeleteObject", f"{INPUT}/zarr.json"),
        ("s3:PutObject", "arn:aws:s3:::least-bucket/other"), ("ec2:RunInstances", "*"),
    ],
}  # fmt: skip


def document_of(clients, policy):
    """Return what a policy says."""
    iam = clients("iam")
    version = iam.get_policy(PolicyArn=policy)["Policy"]["DefaultVersionId"]
    said = iam.get_policy_version(PolicyArn=policy, VersionId=version)["PolicyVersion"]["Document"]
    return json.loads(said) if isinstance(said, str) else said


@pytest.mark.aws
@pytest.mark.parametrize("clients", ["ministack_address"], indirect=True)
def test_roles_have_least_privilege(clients):
    """Producer and worker may do each what they need, and not what the other does."""
    outputs = create(clients, "least")
    queue = "arn:aws:sqs:us-east-1:000000000000"
    for name in NEEDED:
        document = document_of(clients, outputs[name])
        for table, expected in ((NEEDED, True), (REFUSED, False)):
            for action, resource in table[name]:
                arn = queue + resource if resource.startswith(":") else resource
                assert granted(document, action, arn) is expected, (name, action, arn)
    assert "NextStagePolicy" not in outputs


@pytest.mark.aws
@pytest.mark.parametrize("clients", ["ministack_address"], indirect=True)
def test_workers_open_the_next_stage_if_told_so(clients):
    """Only workers of a run of several stages may send tasks."""
    outputs = create(clients, "stages", Stages="several")
    document = document_of(clients, outputs["NextStagePolicy"])
    assert granted(document, "sqs:SendMessage", "arn:aws:sqs:us-east-1:000000000000:stages")
    run = "arn:aws:s3:::stages-bucket/affinity.run/stages/label"
    assert granted(document, "s3:DeleteObject", f"{run}/sending")
    assert not granted(document, "s3:DeleteObject", f"{run}/closed")


FAKES = {
    # What the machine asks of itself, and the orders it gives.
    "curl": """
case "$*" in
  *api/token*) echo token ;;
  *target-lifecycle-state*) cat "$RIG/state" ;;
  *instance-id*) echo i-0123 ;;
esac""",
    "docker": """
echo "docker $*" >> "$RIG/log"
case $1 in
  run)
    for _ in $(seq 500); do [ -e "$RIG/ends" ] && break; /bin/sleep 0.02; done
    exit "$(cat "$RIG/ends")" ;;
  stop) echo 75 > "$RIG/ends" ;;
esac""",
    "aws": 'echo "aws $*" >> "$RIG/log"',
    "sleep": "/bin/sleep 0.02",
}


@pytest.mark.aws
@pytest.mark.parametrize("clients", ["ministack_address"], indirect=True)
def test_machine_leaves_the_fleet_when_its_worker_ends(clients, tmp_path):
    """A finished worker makes the fleet smaller, a stopped one is replaced, a told one drains."""
    name = f"machine{os.getpid()}"
    image = "111122223333.dkr.ecr.us-east-1.amazonaws.com/team/chunkflow:1"
    create(clients, name, Run="s3://b/r.run" + DIGEST, Image=image)
    script = base64.b64decode(template_of(clients, name)["UserData"]).decode()
    program = tmp_path / "user-data"
    program.write_text(script.replace("/var/cache", str(tmp_path / "cache")))
    if shellcheck := shutil.which("shellcheck", path=Path(sys.executable).parent):
        done = subprocess.run([shellcheck, program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")
    for fake, body in FAKES.items():
        (tmp_path / fake).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / fake).chmod(0o755)

    def last_order(state, ends):
        (tmp_path / "log").write_text("")
        (tmp_path / "state").write_text(state)
        (tmp_path / "ends").unlink(missing_ok=True)
        if ends is not None:
            (tmp_path / "ends").write_text(str(ends))
        subprocess.run(
            ["bash", program], check=False, timeout=60, capture_output=True,
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "RIG": str(tmp_path)},
        )  # fmt: skip
        return (tmp_path / "log").read_text().splitlines()[-1]

    leave = "aws autoscaling terminate-instance-in-auto-scaling-group --instance-id i-0123 "
    for code in (0, 1, 2, 125):
        assert last_order("InService", code) == leave + "--should-decrement-desired-capacity"
    for code in (75, 137):
        assert last_order("InService", code) == leave + "--no-should-decrement-desired-capacity"
    log = tmp_path / "log"
    assert last_order("Terminated", None).startswith("aws autoscaling complete-lifecycle-action ")
    assert "docker stop -t 110 worker" in log.read_text()
    registry = "111122223333.dkr.ecr.us-east-1.amazonaws.com"
    assert log.read_text().count(f"--password-stdin {registry}\n") == 1
