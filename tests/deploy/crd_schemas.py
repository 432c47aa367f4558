"""JSON Schemas of the custom resources the chart renders, closed, written from their types; Kubernetes' own kinds are
checked by `kubernetes-validate`. Sources:
- DynamoGraphDeployment v1beta1: ai-dynamo/dynamo deploy/operator/api/v1beta1 (spec, component, multinode)
- ComputeDomain v1beta1: NVIDIA/k8s-dra-driver-gpu
- ServiceMonitor, PrometheusRule: prometheus-operator's API reference, the fields we use
Pod templates inside a DynamoGraphDeployment are checked as Pods.
"""

from typing import Any

Schema = dict[str, Any]


def closed(properties: Schema, required: list[str]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required}


NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA = closed({"name": NAME, "labels": STRINGS, "annotations": STRINGS}, ["name"])
ENV = {
    "type": "array",
    "items": closed({"name": {"type": "string"}, "value": {"type": "string"}}, ["name", "value"]),
}
VERSION = {"type": "string", "pattern": r"^(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})$"}
DURATION = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"}


def resource(api: str, kind: str, spec: Schema) -> Schema:
    return closed(
        {"apiVersion": {"const": api}, "kind": {"const": kind}, "metadata": METADATA, "spec": spec},
        ["apiVersion", "kind", "metadata", "spec"],
    )


COMPONENT = closed(
    {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$", "maxLength": 63},
        "type": {"enum": ["frontend", "worker", "prefill", "decode", "planner", "epp"]},
        "runtimeVersionOverride": VERSION,
        "replicas": {"type": "integer", "minimum": 0},
        "minAvailable": {"type": "integer", "minimum": 1},
        "multinode": closed({"nodeCount": {"type": "integer", "minimum": 2}}, ["nodeCount"]),
        "sharedMemorySize": {"type": "string"},
        "scalingAdapter": closed({}, []),
        "podTemplate": {
            "type": "object",
            "additionalProperties": False,
            "required": ["metadata", "spec"],
            "properties": {
                "metadata": closed({"labels": STRINGS, "annotations": STRINGS}, ["labels"]),
                "spec": {
                    "type": "object",
                    "properties": {
                        "containers": {"type": "array", "contains": {"properties": {"name": {"const": "main"}}}}
                    },
                },
            },
        },
    },
    ["name", "type", "replicas", "podTemplate"],
)

SCHEMAS: dict[str, Schema] = {
    "DynamoGraphDeployment": resource(
        "nvidia.com/v1beta1",
        "DynamoGraphDeployment",
        closed(
            {
                "backendFramework": {"enum": ["sglang", "vllm", "trtllm"]},
                "env": ENV,
                "components": {"type": "array", "maxItems": 25, "items": COMPONENT},
            },
            ["backendFramework", "components"],
        ),
    ),
    "ComputeDomain": resource(
        "resource.nvidia.com/v1beta1",
        "ComputeDomain",
        closed(
            {
                "numNodes": {"type": "integer", "minimum": 0},
                "channel": closed(
                    {"resourceClaimTemplate": closed({"name": NAME}, ["name"])}, ["resourceClaimTemplate"]
                ),
            },
            ["numNodes", "channel"],
        ),
    ),
    "ServiceMonitor": resource(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        closed(
            {
                "selector": closed({"matchLabels": STRINGS}, ["matchLabels"]),
                "endpoints": {
                    "type": "array",
                    "minItems": 1,
                    "items": closed(
                        {"port": {"type": "string"}, "path": {"type": "string"}, "interval": DURATION}, ["port"]
                    ),
                },
            },
            ["selector", "endpoints"],
        ),
    ),
    "PrometheusRule": resource(
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        closed(
            {
                "groups": {
                    "type": "array",
                    "minItems": 1,
                    "items": closed(
                        {
                            "name": {"type": "string"},
                            "interval": DURATION,
                            "rules": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "additionalProperties": False,
                                    "required": ["expr"],
                                    "properties": {
                                        "record": {"type": "string", "pattern": "^[a-zA-Z_:][a-zA-Z0-9_:]*$"},
                                        "alert": {"type": "string"},
                                        "expr": {"type": "string"},
                                        "for": DURATION,
                                        "labels": STRINGS,
                                        "annotations": STRINGS,
                                    },
                                },
                            },
                        },
                        ["name", "rules"],
                    ),
                }
            },
            ["groups"],
        ),
    ),
}
