"""cloud-watch: metrics as an emulator of CloudWatch has received them."""

import logging

import pytest
from rigs import s3

from chunkflow_py.core.task import Task
from chunkflow_py.errors import OptionError, VolumeRefusedError
from chunkflow_py.ops.cloud_watch import CloudWatcher, cloud_watch
from chunkflow_py.volume.output import compute_device

boto3 = pytest.importorskip("boto3")

pytestmark = pytest.mark.aws


@pytest.fixture
def service(moto, monkeypatch, tmp_path):
    """A client of the emulator, to which the environment points; and the proxy before it."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ENDPOINT_URL_CLOUDWATCH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in s3.environment(moto.address, tmp_path).items():
        monkeypatch.setenv(name, value)
    moto.set()
    client = boto3.session.Session().client("cloudwatch")
    yield client, moto
    client.close()
    moto.set()


def metrics(client, namespace):
    """Return {name: (sum, unit, device)} of what a namespace holds."""
    import datetime

    now = datetime.datetime.now(datetime.UTC)
    span = {"StartTime": now - datetime.timedelta(1), "EndTime": now + datetime.timedelta(1)}
    found = {}
    for metric in client.list_metrics(Namespace=namespace)["Metrics"]:
        (point,) = client.get_metric_statistics(
            Namespace=namespace, MetricName=metric["MetricName"], Dimensions=metric["Dimensions"],
            Period=864000, Statistics=["Sum"], **span,
        )["Datapoints"]  # fmt: skip
        (dimension,) = metric["Dimensions"]
        assert dimension["Name"] == "compute_device"
        found[metric["MetricName"]] = (point["Sum"], point["Unit"], dimension["Value"])
    return found


def test_the_times_of_each_task_become_metrics(service):
    """One value a label, in seconds, by device, in the namespace of --log-name."""
    client, _ = service
    with CloudWatcher("run-1") as body:
        for seconds in (1.5, 2.0):
            task = Task(seconds={"load-h5": seconds, "inference#2": 4.0})
            assert body(task) is task
    device = compute_device()
    expected = {"load-h5": (3.5, "Seconds", device), "inference#2": (8.0, "Seconds", device)}
    assert metrics(client, "run-1") == expected
    cloud_watch({"timer": {"a": 1.0}, "compute_device": "GPU X"}, "run-2")
    assert metrics(client, "run-2") == {"a": (1.0, "Seconds", "GPU X")}
    with pytest.raises(OptionError, match="must have the key 'timer'"):
        cloud_watch({"bbox": ""})


def test_an_outage_is_a_warning_and_a_refusal_an_error(service, caplog):
    """Work goes on when CloudWatch does not; what it will never take fails the task."""
    _, faults = service
    broken = {"type": "status", "code": 400, "body": "{}"}
    with CloudWatcher() as body:
        with (
            faults(broken),
            caplog.at_level(logging.WARNING),
        ):
            body(Task(seconds={"a": 1.0}))
        assert "CloudWatch did not accept the metrics" in caplog.text
        with (
            faults({**broken, "code": 403}),
            pytest.raises(VolumeRefusedError, match="cloudwatch:PutMetricData"),
        ):
            body(Task(seconds={"a": 1.0}))


def test_missing_settings_are_told_before_the_first_task(monkeypatch, tmp_path):
    """Without a region, or without credentials, the line does not start."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in s3.environment("http://127.0.0.1:9", tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(OptionError, match="AWS_DEFAULT_REGION"), CloudWatcher():
        pass
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(OptionError, match="AWS_ACCESS_KEY_ID"), CloudWatcher():
        pass
