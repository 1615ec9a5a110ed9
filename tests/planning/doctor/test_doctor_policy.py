"""doctor --policy: the least rights of a run, the same as those of the stack for AWS."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.planning.doctor.access_policy import Area, Policy, areas_of, policy_of
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.run_spec import RunStep, Spec, sha256_of
from chunkflow_py.tasks.task_plan import GridPlan

STACK = Path(__file__).parents[3] / "deploy" / "aws" / "fleet.yaml"
# Parameters of the stack, and what its functions return.
VALUES = {
    "AWS::Partition": "aws",
    "BucketName": "bucket",
    "RunPrefix": "runs/em.run",
    "OutputPrefix": "em/affinity.zarr",
    "InputBucketName": "images",
    "InputPrefix": "em.zarr/",
    "Queue.Arn": "arn:aws:sqs:us-east-1:1:em",
    "DeadLetters.Arn": "arn:aws:sqs:us-east-1:1:em-dead",
}
QUEUE = VALUES["Queue.Arn"], VALUES["DeadLetters.Arn"]
WRITTEN = ("exchange", "ledger", "spending", "stages", "workers")  # folders of a run


class Template(yaml.SafeLoader):
    """Reads a template of CloudFormation, with `VALUES` put in."""


def _function(loader, suffix, node):
    if not isinstance(node, yaml.ScalarNode):
        return None
    text = loader.construct_scalar(node)
    if suffix == "GetAtt":
        return VALUES.get(text)
    for name, value in VALUES.items():
        text = text.replace(f"${{{name}}}", value)
    return text


Template.add_multi_constructor("!", _function)


def rights(*documents):
    """Return what policies allow: pairs of action and resource."""

    def several(value):
        return [value] if isinstance(value, str) else value

    return {
        (action, resource)
        for document in documents
        for statement in document["Statement"]
        for action in several(statement["Action"])
        for resource in several(statement["Resource"])
    }


def run_on(scheme, stages=1):
    """Return the policy of a run whose places are those of `VALUES`."""
    return Policy(
        run=f"{scheme}://bucket/runs/em.run",
        home=f"{scheme}://bucket/runs/em.run",
        outputs=(Area(scheme, "bucket/em/affinity.zarr/*"),),
        inputs=(Area(scheme, "images/em.zarr/*"),),
        queue=QUEUE if scheme == "s3" else None,
        stages=stages,
        remarks=(),
    )


@pytest.mark.parametrize("stages", [1, 2])
def test_rights_are_those_of_the_stack(stages):
    """Each action on each resource is allowed by both, or by neither."""
    resources = yaml.load(STACK.read_text(), Template)["Resources"]
    documents = {
        name: resources[name]["Properties"]["PolicyDocument"]
        for name in ("ProducerPolicy", "WorkerPolicy", "NextStagePolicy")
    }
    policy = run_on("s3", stages)
    more = [documents["NextStagePolicy"]] if stages > 1 else []
    assert rights(policy.producer()) == rights(documents["ProducerPolicy"])
    assert rights(policy.worker()) == rights(documents["WorkerPolicy"], *more)
    assert policy.google() == {}


def test_google_is_told_in_words():
    """On Google, roles and places are named; a worker cannot write the run's spec."""
    said = run_on("gs").google()
    assert any("gs://bucket/runs/em.run/*" in each and "User" in each for each in said["producer"])
    written = [each for each in said["worker"] if "objectUser" in each]
    assert [each.partition(" on ")[2] for each in written] == [
        *(f"gs://bucket/runs/em.run/{folder}/*" for folder in WRITTEN),
        "gs://bucket/em/affinity.zarr/*",
    ]
    assert run_on("gs").worker()["Statement"] == []


@pytest.mark.parametrize(
    ("place", "patterns"),
    [
        ("s3://b/em.zarr at mip 0", ["b/em.zarr/*"]),
        ("s3://b/done/BOX", ["b/done/*"]),
        ("gs://b/syns_BOX.h5", ["b/syns_*"]),
        ("s3://b/table.json", ["b/table.json", "b/table.json/*"]),
        ("file:///data/em.zarr at mip 0", []),
    ],
)
def test_places_become_areas(place, patterns):
    """A volume is what lies below it, and files of tasks are what begins with their name."""
    assert [area.pattern for area in areas_of(place)] == patterns


@pytest.mark.aws
@pytest.mark.parametrize("s3", ["moto"], indirect=True)
def test_policy_of_a_run(s3):
    """The places of a run that was submitted, and ARNs that the queue says, are in its policies."""

    def say(line):
        result = CliRunner().invoke(cli, line.split())
        assert result.exit_code == 0, result.output
        return result.stdout

    base = f"s3://{s3.bucket}"
    say(f"create-chunk --size 8 16 16 save-zarr --store {base}/image.zarr --chunk-size 8 16 16")
    say(
        f"submit --run {base}/em.run --queue sqs://{s3.bucket} generate-tasks --roi-size 8 16 16 "
        f"--chunk-size 8 16 16 load-zarr --store {base}/image.zarr threshold --threshold 1 "
        f"save-zarr --store {base}/out.zarr --chunk-size 8 16 16 mark-complete -p {base}/done/"
    )
    said = json.loads(say(f"doctor --policy {base}/em.run --json"))
    worker = rights(said["worker"])
    queue = f"arn:aws:sqs:us-east-1:123456789012:{s3.bucket}"
    bucket = f"arn:aws:s3:::{s3.bucket}"
    assert ("sqs:DeleteMessage", queue) in worker
    assert ("sqs:SendMessage", f"{queue}-dead") in worker
    assert {place for action, place in worker if action == "s3:PutObject"} == {
        *(f"{bucket}/em.run/{folder}/*" for folder in WRITTEN),
        f"{bucket}/out.zarr/*", f"{bucket}/done/*",
    }  # fmt: skip
    assert ("s3:GetObject", f"{bucket}/image.zarr/*") in worker
    assert said["remarks"] == []
    assert f'"{bucket}/em.run/*"' in say(f"doctor --policy {base}/em.run")


def test_policy_of_a_run_on_this_machine(tmp_path, monkeypatch):
    """A run in folders needs no rights of a cloud; what it reads and writes is said."""
    monkeypatch.chdir(tmp_path)
    for line in (
        "create-chunk --size 8 16 16 save-zarr --store image.zarr --chunk-size 8 16 16",
        "submit --run em.run generate-tasks --roi-size 8 16 16 --chunk-size 8 16 16 "
        "load-zarr --store image.zarr save-zarr --store out.zarr --chunk-size 8 16 16",
    ):
        result = CliRunner().invoke(cli, line.split())
        assert result.exit_code == 0, result.output
    result = CliRunner().invoke(cli, ["doctor", "--policy", "em.run"])
    assert result.exit_code == 0, result.output
    assert f"{tmp_path}/out.zarr" in result.output
    assert "sqs" not in result.output
    assert "Statement" not in result.output


def test_a_policy_holds_no_secret(tmp_path):
    """A password in an address of the line is not printed."""
    plan = GridPlan(BoxGrid(Zyx(0, 0, 0), Zyx(8, 8, 8), Zyx(8, 8, 8), Zyx(1, 1, 1)))
    said, content = plan.to_json()
    options = (("load-precomputed", {"reads": ["https://me:geheim@host/em at mip 0"]}),)
    stage = RunStep("infer", (), ("generate-tasks",), 0, options, said, sha256_of(content), 1)
    RunDirectory(f"{tmp_path}/r").create(Spec((stage,), "", "/", "0", {}), {"infer": content}, {})
    words = policy_of(f"{tmp_path}/r").text()
    assert "geheim" not in words
    assert "https://host/em" in words
