"""What KEDA 2.13 and later accept, as far as it is used here (https://keda.sh/docs/reference)."""

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}


def record(required=(), **properties):
    """Return the schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


METADATA = record(["name", "namespace"], name=TEXT, namespace=TEXT, labels={}, annotations={})
# Whatever they mean, values of a trigger are text.
SQS = record(
    ["queueURL", "awsRegion"],
    queueURL={"type": "string", "pattern": r"^https://sqs\.[a-z0-9-]+\.amazonaws\.com/\d{12}/\S+$"},
    awsRegion=TEXT,
    queueLength={"type": "string", "pattern": r"^\d+$"},
    activationQueueLength={"type": "string", "pattern": r"^\d+$"},
    scaleOnInFlight={"enum": ["true", "false"]},
    scaleOnDelayed={"enum": ["true", "false"]},
)
TRIGGER = record(
    ["type", "metadata"],
    type={"const": "aws-sqs-queue"},
    name=TEXT,
    metadata=SQS,
    authenticationRef=record(
        ["name"],
        name=TEXT,
        kind={"enum": ["TriggerAuthentication", "ClusterTriggerAuthentication"]},
    ),
)
POD_IDENTITY = record(
    ["provider"],
    provider={"enum": ["aws", "azure-workload", "gcp", "none"]},  # aws-eks is deprecated
    roleArn=TEXT,
    identityOwner={"enum": ["keda", "workload"]},
)
SPECIFICATIONS = {
    "TriggerAuthentication": record(["podIdentity"], podIdentity=POD_IDENTITY),
    "ScaledJob": record(
        ["jobTargetRef", "triggers"],
        jobTargetRef={"type": "object"},  # the specification of a Job, checked as such
        pollingInterval=COUNT,
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        successfulJobsHistoryLimit=COUNT,
        failedJobsHistoryLimit=COUNT,
        envSourceContainerName=TEXT,
        rollout=record(
            strategy={"enum": ["default", "gradual"]},
            propagationPolicy={"enum": ["background", "foreground"]},
        ),
        scalingStrategy=record(strategy={"enum": ["default", "custom", "accurate", "eager"]}),
        triggers={"type": "array", "minItems": 1, "items": TRIGGER},
    ),
}
KINDS = {
    kind: record(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": "keda.sh/v1alpha1"},
        kind={"const": kind},
        metadata=METADATA,
        spec=specification,
    )
    for kind, specification in SPECIFICATIONS.items()
}
