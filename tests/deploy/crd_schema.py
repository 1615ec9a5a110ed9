"""JSON schemas of custom resources, derived from the definitions that their projects publish.

crd_schemas/README.md names the definitions and their licence. To derive the schemas again:

    python tests/deploy/crd_schema.py KEDA KUEUE PROMETHEUS-OPERATOR

The arguments are folders with the sources of the three projects.
"""

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "crd_schemas"
SQS = "aws-sqs-queue"
KEDA_CRDS, KUEUE_CRDS = "config/crd/bases/keda.sh_", "config/components/crd/bases/kueue.x-k8s.io_"
SOURCES = [  # argument, definition, version
    (0, f"{KEDA_CRDS}scaledjobs.yaml", "v1alpha1"),
    (0, f"{KEDA_CRDS}triggerauthentications.yaml", "v1alpha1"),
    (1, f"{KUEUE_CRDS}clusterqueues.yaml", "v1beta2"),
    (1, f"{KUEUE_CRDS}localqueues.yaml", "v1beta2"),
    (1, f"{KUEUE_CRDS}resourceflavors.yaml", "v1beta2"),
    (1, f"{KUEUE_CRDS}workloadpriorityclasses.yaml", "v1beta2"),
    (2, "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml", "v1"),
]
SCALERS = "schema/generated/scalers-schema.json"  # parameters of KEDA's triggers
# Annotations for people, and rules that JSON schemas cannot express.
LEFT_OUT = ("description", "default", "format", "nullable", "example")
METADATA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def closed(schema):
    """Return an OpenAPI schema as a JSON schema that rejects unknown fields."""
    if isinstance(schema, bool):
        return schema
    keeps_unknown = schema.get("x-kubernetes-preserve-unknown-fields", False)
    result = {
        key: value
        for key, value in schema.items()
        if key not in LEFT_OUT and not key.startswith("x-kubernetes-")
    }
    for key in ("items", "additionalProperties", "not"):
        if key in result:
            result[key] = closed(result[key])
    for key in ("allOf", "anyOf", "oneOf"):
        if key in result:  # they constrain fields that the schema around them has
            result[key] = [{**closed(each)} for each in result[key]]
            for each in result[key]:
                each.pop("additionalProperties", None)
    if "properties" in result:
        result["properties"] = {name: closed(of) for name, of in result["properties"].items()}
        if not keeps_unknown:
            result["additionalProperties"] = False
    if schema.get("nullable"):
        result = {"anyOf": [{"type": "null"}, result]}
    return result


def derived(definition, version):
    """Return (kind, schema) of one version of a custom resource definition."""
    spec = definition["spec"]
    (served,) = (each for each in spec["versions"] if each["name"] == version)
    assert served["served"]
    assert not served.get("deprecated")
    schema = closed(served["schema"]["openAPIV3Schema"])
    kind, properties = spec["names"]["kind"], schema["properties"]
    properties.pop("status", None)
    properties["apiVersion"] = {"enum": [f"{spec['group']}/{version}"]}
    properties["kind"] = {"enum": [kind]}
    properties["metadata"] = METADATA
    schema["required"] = sorted({"apiVersion", "kind", "metadata", *schema.get("required", [])})
    return kind, {"$schema": "http://json-schema.org/draft-04/schema#", **schema}


def sqs_parameters(scalers):
    """Return the schema of the parameters of KEDA's trigger for SQS; each is a text."""
    (scaler,) = (each for each in scalers["scalers"] if each["type"] == SQS)
    parameters = {
        each["name"]: {"type": each["type"]}
        for each in scaler["parameters"]
        if each.get("metadataVariableReadable")
    }
    for each in scaler["parameters"]:
        if each.get("default") in ("true", "false"):
            parameters[each["name"]]["enum"] = ["true", "false"]
    required = ["awsRegion", "queueURL"]
    return {
        "type": "object",
        "properties": parameters,
        "required": required,
        "additionalProperties": False,
    }


def load():
    """Return the schemas by kind."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def main(folders):
    """Derive all schemas from the sources of the projects."""
    import yaml

    for number, path, version in SOURCES:
        kind, schema = derived(yaml.safe_load((Path(folders[number]) / path).read_text()), version)
        if kind == "ScaledJob":
            spec = schema["properties"]["spec"]["properties"]
            spec["jobTargetRef"] = {"type": "object"}  # the tests check it as the spec of a Job
            scalers = json.loads((Path(folders[0]) / SCALERS).read_text())
            trigger = spec["triggers"]["items"]["properties"]
            trigger["type"] = {"enum": [SQS]}
            trigger["metadata"] = sqs_parameters(scalers)
        text = json.dumps(schema, separators=(",", ":"), sort_keys=True)
        (FOLDER / f"{kind}.json").write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
