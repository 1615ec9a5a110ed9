"""Tests of chunkflow_py.volume: which driver opens an address, and what is said if none can."""

import subprocess
import sys

import numpy as np
import pytest

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import VolumeError, VolumeNotFoundError, VolumeRefusedError
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import VolumeSpec


@pytest.mark.parametrize(
    ("url", "kind", "protocol", "path"),
    [
        ("/data/em", None, "file", "/data/em"),
        ("/data/em/", None, "file", "/data/em"),
        ("file:///data/em", None, "file", "/data/em"),
        ("precomputed:///data/em", "precomputed", "file", "/data/em"),
        ("precomputed://file:///data/em", "precomputed", "file", "/data/em"),
        ("precomputed://gs://bucket/em/", "precomputed", "gs", "bucket/em"),
        ("s3://bucket/em", None, "s3", "bucket/em"),
        ("https://host/em", None, "https", "host/em"),
        ("n5://s3://bucket/em.n5", "n5", "s3", "bucket/em.n5"),
        ("s3://bucket/em/|neuroglancer-precomputed:", "precomputed", "s3", "bucket/em"),
        ("gs://bucket/em.zarr/|zarr3:", "zarr", "gs", "bucket/em.zarr"),
        ("graphene://https://host/table/em", "graphene", "https", "host/table/em"),
        ("h5:///data/em.h5", "h5", "file", "/data/em.h5"),
        ("h5:///data/em.dat", "h5", "file", "/data/em.dat"),
        ("/data/em.h5", "h5", "file", "/data/em.h5"),
        ("zarr:///data/em.zarr", "zarr", "file", "/data/em.zarr"),
        ("zarr2://file:///data/em.zarr", "zarr", "file", "/data/em.zarr"),
        ("zarr3://file:///data/em.zarr", "zarr", "file", "/data/em.zarr"),
    ],
)
def test_location(url, kind, protocol, path):
    """Format, protocol and path are told apart."""
    place = Location.parse(url)
    assert (place.format, place.protocol, place.path) == (kind, protocol, path)
    assert str(place) == url
    assert (place / "log").path == f"{path}/log"


@pytest.mark.parametrize(
    ("url", "path", "dataset"),
    [
        ("h5:///data/em.h5:main", "/data/em.h5", "main"),
        ("h5:///data/em.h5:/volumes/raw", "/data/em.h5", "/volumes/raw"),
        ("/data/em.hdf5:volumes/raw", "/data/em.hdf5", "volumes/raw"),
        ("/data/em.h5", "/data/em.h5", None),
        ("/data/em:main", "/data/em:main", None),
    ],
)
def test_dataset(url, path, dataset):
    """The dataset of an HDF5 file follows a colon."""
    place = Location.parse(url)
    assert (place.path, place.dataset) == (path, dataset)


def test_relative_paths(tmp_path, monkeypatch):
    """Relative paths, with or without file://, begin in the working folder; ~ is the home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    for url in ("em", "./em", "file://em", "zarr://em", "precomputed://file://em"):
        assert Location.parse(url).path == f"{tmp_path}/em"
    assert Location.parse("~/em").path == "/home/someone/em"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("precomputd://x", r"unknown scheme precomputd://; did you mean precomputed://\?"),
        ("zar://x", r"did you mean zarr"),
        ("qqqqq://x", r"unknown scheme qqqqq://; use one of precomputed, zarr"),
        ("precomputed://gss://x", r"unknown scheme gss://; did you mean gs://\?"),
        ("", "names no volume"),
        ("gs://", "names no volume"),
        ("s3://bucket/em|zar4:", r"unknown scheme zar4://; did you mean zarr"),
    ],
)
def test_bad_addresses(url, text):
    """An address that cannot work is refused with the nearest that may be meant."""
    with pytest.raises(VolumeError, match=text):
        open_volume(url)


def test_password_in_a_location():
    """Name, password and signature are kept for the call, and are in nothing that is printed."""
    for url, shown in (
        ("http://me:geheim@host:80/em", "http://host:80/em"),
        ("precomputed://https://me:ge@heim@host/em", "precomputed://https://host/em"),
        ("https://host/em?X-Amz-Signature=geheim", "https://host/em"),
        ("https://host/em.zarr?sig=geheim|zarr3:", "https://host/em.zarr|zarr3:"),
        ("s3://key:geheim@bucket/em", "s3://bucket/em"),
    ):
        place = Location.parse(url)
        below = place / "log"
        assert (place.url, str(place), below.url) == (shown, shown, f"{shown}/log")
        assert "heim" not in repr(place) + repr(below)
        assert (place.address, below.address) == (url, f"{url}/log")
        assert "heim" in place.store_url
    for url in ("file://me:geheim@host", "/data/a?b@c#d", "gs://bucket/a?b@c"):
        assert Location.parse(url).url == url
    with pytest.raises(VolumeError, match=r"unknown scheme htpp://; did you mean http") as caught:
        Location.parse("htpp://me:geheim@host/em")
    assert "geheim" not in str(caught.value)


def test_nothing_there(tmp_path):
    """Nothing, a file, an empty folder and an N5 that says nothing are told apart."""
    with pytest.raises(VolumeNotFoundError, match=rf"{tmp_path}/no does not exist; check the path"):
        open_volume(f"{tmp_path}/no")
    (tmp_path / "file").touch()
    with pytest.raises(VolumeNotFoundError, match="is a file of an unknown kind"):
        open_volume(f"{tmp_path}/file")
    with pytest.raises(VolumeNotFoundError, match=r"holds no volume: it contains neither info"):
        open_volume(str(tmp_path))
    (tmp_path / "attributes.json").write_text("{}")
    with pytest.raises(VolumeError, match="N5"):
        open_volume(str(tmp_path))


def test_create_needs_a_format(tmp_path):
    """A bare path does not say what to create; what is only read is not created."""
    spec = VolumeSpec(
        BoundingBox(Zyx(0, 0, 0), Zyx(8, 8, 8)), (1, 1, 1), np.dtype("u1"), None, None, Zyx(8, 8, 8)
    )
    with pytest.raises(VolumeError, match=r"names no format; use precomputed://.* or zarr://"):
        create_volume(spec, f"{tmp_path}/em")
    with pytest.raises(VolumeError, match=r"n5 volumes can only be read"):
        create_volume(spec, f"n5://{tmp_path}/em")
    assert create_volume(spec, f"{tmp_path}/em", format="zarr").bounds == spec.bounds


def test_light_import():
    """Opening a package of drivers loads none of them, nor NumPy."""
    code = (
        "import sys, chunkflow_py.volume, chunkflow_py.volume.saver, chunkflow_py.volume.loader\n"
        "print({'numpy', 'zarr', 'cloudvolume'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("s3", ["ministack"], indirect=True)
def test_signs_are_looked_for_together(s3):
    """Far away the files that tell the format are asked for at the same time, after the first."""
    spec = VolumeSpec(
        BoundingBox(Zyx(0, 0, 0), Zyx(8, 8, 8)), (1, 1, 1), np.dtype("u1"), None, None, Zyx(8, 8, 8)
    )
    for kind in ("precomputed", "zarr"):
        create_volume(spec, f"{kind}://{s3.url}/{kind}")
    with s3.faults({"type": "latency", "s": 0.3, "method": "HEAD"}) as faults:
        assert open_volume(f"{s3.url}/zarr").bounds == spec.bounds
        asked = [each for each in faults.log() if each["method"] == "HEAD"]
        assert max(each["under_way"] for each in asked) >= 4
        faults.set()
        assert open_volume(f"{s3.url}/precomputed").bounds == spec.bounds
        assert [each["method"] for each in faults.log()].count("HEAD") == 1


@pytest.mark.parametrize("s3", ["ministack"], indirect=True)
def test_keys_that_may_not_be_listed(s3):
    """Where a missing object answers 403, the format is found all the same; if none is, we say."""
    spec = VolumeSpec(
        BoundingBox(Zyx(0, 0, 0), Zyx(8, 8, 8)), (1, 1, 1), np.dtype("u1"), None, None, Zyx(8, 8, 8)
    )
    create_volume(spec, f"zarr://{s3.url}/em")
    denied = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    with s3.faults({"type": "status", "code": 403, "body": denied, "path": ".*/info"}):
        assert open_volume(f"{s3.url}/em").bounds == spec.bounds
        with pytest.raises(VolumeRefusedError, match="check that your credentials may use"):
            open_volume(f"{s3.url}/nothing")
