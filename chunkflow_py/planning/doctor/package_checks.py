"""Check the versions of Python and of packages, and report missing extras of this package."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import TYPE_CHECKING

from chunkflow_py.planning.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.requirements import Requirement

PACKAGE = "chunkflow_py"
NEEDS_PACKAGING = "the package 'packaging' is not installed, so versions cannot be checked"

# extra -> its purpose; tests compare this with the error messages of the commands
BRINGS = {
    "image": "load-png, save-pngs, load-tif, save-tif, load-nrrd, save-nrrd, load-mrc, preview, "
    "and PNG in precomputed volumes",
    "zarr": "load-zarr, save-zarr, load-n5, and zarr and N5 volumes of every command",
    "precomputed": "compressed blocks of load-precomputed and save-precomputed, graphene volumes, "
    "view, download-mesh and mesh-manifest for meshes with several levels of detail",
    "cloud": "s3://, gs:// and https:// addresses, and cloud-watch",
    "dask": "run --on dask://, and inference over dask arrays",
    "segmentation": "segment-affinity, fragment-affinity, evaluate-hierarchy, agglomerate, "
    "connected-components, relabel, "
    "evaluate-segmentation, fill-segmentation-holes, mask-out-objects, median-filter, clahe, "
    "adjust-pre, detect-points, detect-post-synapses, detect-duplicate-post, mesh --dust-threshold",
    "nifti": "NIfTI files as volumes",
    "parquet": "Parquet tables of label-statistics",
    "mesh": "mesh, mesh-manifest --multires",
    "numba": "a faster segment-affinity",
    "mutex": "agglomerate --method mutex",
    "metrics": "figures for Prometheus (--metrics-port)",
    "telemetry": "traces and metrics for OpenTelemetry (OTEL_EXPORTER_OTLP_ENDPOINT)",
    "sign": "signatures of runs (submit --sign-key, work --trust-key)",
    "skeleton": "skeletonize, aggregate-skeleton-fragments",
    "tensorstore": "load-tensorstore",
    "napari": "napari",
    "view": "neuroglancer, log-summary --plot, evaluate-hierarchy --figure",
    "sqs": "queues of Amazon SQS",
    "openvino": "inference --backend openvino",
    "onnx": "inference --backend onnxruntime, and ONNX models",
    "hub": "hf:// addresses of networks",
    "bioimage": "model packages of the BioImage Model Zoo",
    "nnunet": "nnU-Net models",
    "monai": "MONAI bundles without TorchScript",
}
NOT_EXTRAS = "all", "dev", "testing", "docs"

# reasons why a version is not allowed
_REASONS = {
    "zfpy": "with this version, numcodecs and zarr cannot be imported",
    "neuroglancer": (
        "pip chooses an old version if it must not build atomicwrites, which exists only as source "
        "code; add --no-binary atomicwrites to the pip command"
    ),
}
# pairs of packages that fail unless they have the same version
_PAIRS = (("dask", "distributed"),)


def check_python() -> Iterator[Finding]:
    """Check that chunkflow_py supports the version of Python."""
    running = ".".join(map(str, sys.version_info[:3]))
    known = sys.prefix
    try:
        from packaging.specifiers import SpecifierSet

        allowed = metadata.metadata(PACKAGE)["Requires-Python"] or ""
    except metadata.PackageNotFoundError:
        allowed = ""
    except ImportError:
        yield Finding("python", "problem", NEEDS_PACKAGING, "pip install packaging")
        return
    if running in SpecifierSet(allowed):
        yield Finding("python", "ok", f"{running} in {known}")
    else:
        text = f"{running} in {known}, but {PACKAGE} needs {allowed}"
        yield Finding("python", "problem", text, "create a virtual environment with another Python")


def check_packages() -> Iterator[Finding]:
    """Check the versions of the required packages, and find pairs with incompatible versions."""
    try:
        needed = [each for each in _requirements() if _is_for(each, "")]
    except ImportError:
        return  # `check_python` reports this
    if not needed:
        text = (
            f"{PACKAGE} runs from a folder without being installed, so its requirements cannot be "
            "checked"
        )
        yield Finding("packages", "problem", text, "run pip install . in that folder")
    found = []
    for requirement in needed:
        version = version_of(requirement.name)
        if version is None:
            text = f"{requirement.name} is not installed"
            yield Finding("packages", "problem", text, f"pip install '{_wish(requirement)}'")
        elif not requirement.specifier.contains(version, prereleases=True):
            yield _wrong(requirement, version)
        else:
            found.append(f"{requirement.name} {version}")
    if found:
        yield Finding("packages", "ok", ", ".join([f"{PACKAGE} {version_of(PACKAGE)}", *found]))
    for one, other in _PAIRS:
        versions = version_of(one), version_of(other)
        if None not in versions and len(set(versions)) > 1:
            text = (
                f"{one} {versions[0]} and {other} {versions[1]} are installed, but must have "
                "the same version"
            )
            remedy = f"pip install --upgrade {one} {other}"
            yield Finding("packages", "problem", text, remedy)


def check_extras() -> Iterator[Finding]:
    """Report the installed extras; for each missing extra, its purpose and how to install it."""
    try:
        requirements = _requirements()
    except ImportError:
        return
    complete = []
    for extra, brings in BRINGS.items():
        own = [each for each in requirements if not _is_for(each, "") and _is_for(each, extra)]
        missing, is_good = [], True
        for requirement in [inner for each in own for inner in _with_extras(each)]:
            version = version_of(requirement.name)
            if version is None:
                missing.append(requirement.name)
            elif not requirement.specifier.contains(version, prereleases=True):
                is_good = False
                yield _wrong(requirement, version, extra)
        if missing:
            text = (
                f"packages of the extra [{extra}] are missing: "
                f"{', '.join(dict.fromkeys(missing))}; the extra is needed for {brings}"
            )
            yield Finding("extras", "note", text, f"pip install '{PACKAGE}[{extra}]'")
        elif not own and requirements:
            text = f"{PACKAGE} was installed before the extra [{extra}] was added"
            yield Finding("extras", "note", text, f"pip install '{PACKAGE}[{extra}]'")
        elif is_good:
            complete.append(extra)
    if complete:
        yield Finding("extras", "ok", ", ".join(complete))


def version_of(name: str) -> str | None:
    """Return the version of a package, or ``None`` if the package is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements(name: str = PACKAGE) -> list[Requirement]:
    """Return the requirements of a package and of its extras; empty for a missing package.

    Raises:
        ImportError: the package `packaging` is not installed.
    """
    from packaging.requirements import Requirement

    try:
        return [Requirement(text) for text in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:
        return []


def _is_for(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _with_extras(requirement: Requirement) -> Iterator[Requirement]:
    """Yield *requirement* and, if it names extras (``pkg[extra]``), the requirements of these."""
    yield requirement
    for inner in _requirements(requirement.name) if requirement.extras else ():
        if not _is_for(inner, "") and any(_is_for(inner, extra) for extra in requirement.extras):
            yield inner


def _wish(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _wrong(requirement: Requirement, version: str, extra: str = "") -> Finding:
    part = f" of [{extra}]" if extra else ""
    reason = _REASONS.get(requirement.name, "")
    text = f"{requirement.name} {version}{part} is installed, but {_wish(requirement)} is needed"
    text += f" ({reason})" if reason else ""
    check = "extras" if extra else "packages"
    return Finding(check, "problem", text, f"pip install --upgrade '{_wish(requirement)}'")
