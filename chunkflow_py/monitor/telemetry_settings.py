"""Decide whether to export telemetry, from the environment variables of OpenTelemetry."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

_ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
_PROTOCOL = "http/protobuf"


def telemetry_is_on(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to export telemetry.

    Telemetry needs an endpoint, the protocol ``http/protobuf`` and the packages of OpenTelemetry.
    ``OTEL_SDK_DISABLED=true`` turns telemetry off. A missing package causes a warning but no error,
    because many clusters set the variables of an endpoint in all containers.
    """
    if not any(environment.get(name) for name in _ENDPOINTS):
        return False
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    protocol = environment.get("OTEL_EXPORTER_OTLP_PROTOCOL") or _PROTOCOL
    if protocol != _PROTOCOL:
        logger.warning(
            "telemetry is off: OTEL_EXPORTER_OTLP_PROTOCOL is %s, but only %s is supported; set it "
            "to %s, and the endpoint to the HTTP port of the collector (4318 by default)",
            protocol,
            _PROTOCOL,
            _PROTOCOL,
        )
        return False
    packages = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "prometheus_client")
    missing = [package for package in packages if not _is_installed(package)]
    if missing:
        logger.warning(
            "telemetry is off: OTEL_EXPORTER_OTLP_ENDPOINT is set, but %s is not installed; run "
            "pip install 'chunkflow_py[telemetry]', or set OTEL_SDK_DISABLED=true",
            " and ".join(missing),
        )
    return not missing


def exports(signal: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to export a signal, ``traces`` or ``metrics``.

    The signal needs an endpoint: ``OTEL_EXPORTER_OTLP_ENDPOINT``, or the variable for this signal,
    such as ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``. The value ``none`` of the variable
    ``OTEL_TRACES_EXPORTER`` or ``OTEL_METRICS_EXPORTER`` turns the signal off.
    """
    name = signal.upper()
    if (environment.get(f"OTEL_{name}_EXPORTER") or "otlp").strip().lower() == "none":
        return False
    common = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return bool(common or environment.get(f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT"))


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
