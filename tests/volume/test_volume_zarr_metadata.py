"""Tests of chunkflow_py.volume.zarr.zarr_metadata: damaged documents are named."""

import json

import numpy as np
import pytest

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import VolumeError
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

BOUNDS = BoundingBox(Zyx(0, 0, 0), Zyx(8, 16, 16))
SPEC = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", Zyx(8, 8, 8))


def damaged(folder, key, change):
    """Change one document of a volume, or replace it by text."""
    file = folder / key
    if isinstance(change, str):
        file.write_text(change)
        return
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def image(document):
    """Return the image that a document describes."""
    return document.get("attributes", {}).get("ome", document)["multiscales"][0]


@pytest.mark.parametrize(
    ("key", "change", "text"),
    [
        ("zarr.json", "{", "is damaged: Expecting property name"),
        ("zarr.json", "[1]", "the document contains a list, not a JSON object"),
        ("zarr.json", lambda d: d.update(zarr_format=9), "zarr_format is 9, but must be 3"),
        ("zarr.json", lambda d: d.pop("zarr_format"), "the field 'zarr_format' is missing"),
        ("zarr.json", lambda d: d.pop("node_type"), "the field 'node_type' is missing"),
        ("zarr.json", lambda d: d.update(node_type="tree"), "node_type is 'tree'"),
        ("zarr.json", lambda d: d.update(attributes=[]), "the field attributes contains a list"),
        ("zarr.json", lambda d: image(d).pop("datasets"), "no list of datasets"),
        ("zarr.json", lambda d: image(d).update(datasets={"a": 1}), "no list of datasets"),
        ("zarr.json", lambda d: image(d)["datasets"][0].pop("path"), "has no path"),
        ("zarr.json", lambda d: image(d).update(axes=[3, 4, 5]), "has an unexpected structure"),
        ("0/zarr.json", lambda d: d.pop("shape"), "is damaged"),
        ("0/zarr.json", lambda d: d.update(zarr_format=9), "zarr_format is 9, but must be 3"),
        ("0/zarr.json", lambda d: d.update(codecs=[{}]), "the field 'name' is missing"),
    ],
)
def test_version_3(tmp_path, key, change, text):
    """The document that is damaged is named, and what is wrong with it."""
    create_volume(SPEC, f"zarr://{tmp_path}/z")
    damaged(tmp_path / "z", key, change)
    with pytest.raises(VolumeError, match=rf"cannot open .*/z: {key} is damaged: ") as error:
        open_volume(f"zarr://{tmp_path}/z")
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("key", "change", "text"),
    [
        (".zgroup", lambda d: d.update(zarr_format=9), "zarr_format is 9, but must be 2"),
        (".zattrs", "[]", "the document contains a list"),
        (".zattrs", lambda d: image(d).pop("datasets"), "no list of datasets"),
        ("0/.zarray", "nothing", "is damaged: Expecting value"),
        ("0/.zarray", lambda d: d.pop("chunks"), "chunks"),
    ],
)
def test_version_2(tmp_path, key, change, text):
    """The same is true of the documents of version 2."""
    create_volume(SPEC, f"zarr2://{tmp_path}/z")
    damaged(tmp_path / "z", key, change)
    with pytest.raises(VolumeError, match=rf"cannot open .*/z: {key} is damaged: ") as error:
        open_volume(f"zarr://{tmp_path}/z")
    assert text in str(error.value)
