"""Synapses: presynaptic points (T-bars), each with its postsynaptic points.

File formats:

| file | content                                                                                 |
|------|-----------------------------------------------------------------------------------------|
| HDF5 | datasets ``pre`` (n, 3) (older: ``tbars``), ``post`` (m, 4), ``resolution``,             |
|      | ``pre_confidence``, ``post_confidence``, ``pre_users``, ``post_users``, ``object_ids``;   |
|      | attribute ``users``, names joined by ``;``                                               |
| JSON | the same names, as lists                                                                |
| JSON | ``order`` (["x", "y", "z"]), ``resolution``, and for each synapse                        |
|      | ``{"coord": […], "postsynapses": [[…], …]}``                                             |
| JSON | a list of DVID's elements: ``Kind`` PreSyn and PostSyn, ``Pos`` (xyz), ``Prop``, ``Rels`` |

The first column of ``post`` is the row of ``pre`` that the point belongs to; the other three
columns are the position of the point. All four formats can be read; the first two are written.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.hdf5_io import SIGNATURE, pack, unpack
from chunkflow_py.errors import ChunkError, VolumeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

# Optional arrays, one value for each point of pre or post.
_OF_PRE = ("pre_confidence", "pre_users", "object_ids")
_OF_POST = ("post_confidence", "post_users")


@dataclass(frozen=True, eq=False)
class Synapses:
    """Presynaptic points, and postsynaptic points that belong to them.

    Attributes:
        pre: array of shape (n, 3): indices, zyx, of the voxels that contain the T-bars.
        post: array of shape (m, 3): indices, zyx, of the voxels that contain the postsynaptic
            points.
        post_to_pre: array of shape (m,): row of *pre* with the T-bar of each postsynaptic point.
        voxel_size_nm: edge lengths of a voxel, nanometres, zyx, if known.
        pre_confidence: array of shape (n,): confidence of each T-bar, in [0, 1].
        post_confidence: array of shape (m,): confidence of each postsynaptic point, in [0, 1].
        users: names of the people who made or edited the points.
        pre_users: array of shape (n,): index in *users* of the annotator of each T-bar; -1 if
            unknown.
        post_users: array of shape (m,): index in *users* of the annotator of each postsynaptic
            point; -1 if unknown.
        object_ids: array of shape (n,): id of the segment that contains each T-bar; 0 if no segment
            does.
    """

    pre: NDArray[Any]
    post: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    post_to_pre: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.int64))
    voxel_size_nm: tuple[float, float, float] | None = None
    pre_confidence: NDArray[Any] | None = None
    post_confidence: NDArray[Any] | None = None
    users: tuple[str, ...] = ()
    pre_users: NDArray[Any] | None = None
    post_users: NDArray[Any] | None = None
    object_ids: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        """Check the shapes of the arrays, and the indices by which arrays refer to others.

        Raises:
            ChunkError: an array does not match the others; the message names this array.
        """
        for name in ("pre", "post"):
            points = getattr(self, name)
            if points.ndim != 2 or points.shape[1] != 3 or points.dtype.kind not in "iu":
                msg = (
                    f"{name} of synapses must be an integer array of shape (n, 3), voxels, zyx; "
                    f"got {points.dtype} of shape {points.shape}"
                )
                raise ChunkError(msg)
        counts = dict.fromkeys(_OF_PRE, len(self.pre)) | dict.fromkeys(_OF_POST, len(self.post))
        for name, count in (counts | {"post_to_pre": len(self.post)}).items():
            values = getattr(self, name)
            if values is not None and values.shape != (count,):
                msg = (
                    f"{name} of synapses has shape {values.shape}, but must have shape ({count},): "
                    "one value for each point"
                )
                raise ChunkError(msg)
        if len(self.post) and not 0 <= self.post_to_pre.min() <= self.post_to_pre.max() < len(
            self.pre
        ):
            msg = (
                f"postsynaptic points refer to rows {self.post_to_pre.min()} to "
                f"{self.post_to_pre.max()} of the presynaptic points, but there are only "
                f"{len(self.pre)} rows, numbered from 0"
            )
            raise ChunkError(msg)

    def __len__(self) -> int:
        """Return the number of presynaptic points."""
        return len(self.pre)

    def _nm(self, points: NDArray[Any]) -> NDArray[Any]:
        return np.multiply(points + 0.5, self.voxel_size_nm or (1.0, 1.0, 1.0))

    @property
    def pre_nm(self) -> NDArray[Any]:
        """The centres of the voxels of *pre*, zyx: in nm, or in voxels if the size is unknown."""
        return self._nm(self.pre)

    @property
    def post_nm(self) -> NDArray[Any]:
        """The centres of the voxels of *post*, zyx: in nm, or in voxels if the size is unknown."""
        return self._nm(self.post)

    @property
    def bbox(self) -> BoundingBox | None:
        """The smallest box around all points, in voxels; ``None`` if there are no points."""
        points = np.concatenate([self.pre, self.post])
        if not len(points):
            return None
        return BoundingBox(
            Zyx.of(points.min(axis=0).tolist()), Zyx.of((points.max(axis=0) + 1).tolist())
        )

    @property
    def pre_to_post_distances(self) -> NDArray[Any]:
        """The distance in voxels of each postsynaptic point from its T-bar, of shape (m,)."""
        apart: NDArray[Any] = self.post - self.pre[self.post_to_pre]
        return np.asarray(np.linalg.norm(apart, axis=1))

    def keep_pre(self, keep: NDArray[Any]) -> Synapses:
        """Return the synapses of some T-bars, with their postsynaptic points.

        Args:
            keep: array of shape (n,), bool: true for the T-bars to keep.
        """
        new_rows = np.cumsum(keep) - 1
        rest = self.keep_post(keep[self.post_to_pre])
        kept = self._part(_OF_PRE, keep)
        return replace(rest, pre=self.pre[keep], post_to_pre=new_rows[rest.post_to_pre], **kept)

    def keep_post(self, keep: NDArray[Any]) -> Synapses:
        """Return all T-bars with some of their postsynaptic points.

        Args:
            keep: array of shape (m,), bool: true for the points to keep.
        """
        kept = self._part(_OF_POST, keep)
        return replace(self, post=self.post[keep], post_to_pre=self.post_to_pre[keep], **kept)

    def _part(self, names: Sequence[str], keep: NDArray[Any]) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names}
        return {name: None if array is None else array[keep] for name, array in values.items()}

    def inside(self, bbox: BoundingBox) -> Synapses:
        """Return the synapses whose T-bars are in *bbox* (voxels, half-open)."""
        is_inside = (self.pre >= bbox.start) & (self.pre < bbox.stop)
        return self.keep_pre(np.all(is_inside, axis=1))

    def user_id(self, name: str) -> int:
        """Return the index of an annotator in *users*.

        Raises:
            ChunkError: no annotator has this name; the message lists the annotators.
        """
        if name not in self.users:
            known = ", ".join(self.users) or "none"
            msg = (
                f"these synapses have no annotator (user) named {name!r}; the annotators are "
                f"{known}"
            )
            raise ChunkError(msg)
        return self.users.index(name)

    # --- files ------------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, NDArray[Any] | None]:
        post = np.column_stack([self.post_to_pre, self.post]) if len(self.post) else None
        size = None if self.voxel_size_nm is None else np.asarray(self.voxel_size_nm, float)
        arrays = {"pre": self.pre, "post": post, "resolution": size}
        return arrays | {name: getattr(self, name) for name in (*_OF_PRE, *_OF_POST)}

    def to_hdf5(self) -> bytes:
        """Return an HDF5 file with the datasets listed at the top of this module, in zyx order."""
        return pack(self._arrays(), {"users": ";".join(self.users)} if self.users else {})

    def to_json(self) -> bytes:
        """Return a JSON file with lists named like the HDF5 datasets, in zyx order."""
        values: dict[str, Any] = {k: v.tolist() for k, v in self._arrays().items() if v is not None}
        if self.users:
            values["users"] = list(self.users)
        return json.dumps(values).encode()

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        what: str = "the file",
        voxel_size_nm: tuple[float, float, float] | None = None,
        *,
        is_xyz: bool = False,
    ) -> Synapses:
        """Return the synapses of a file of any of the formats listed at the top of this module.

        Args:
            data: the whole file.
            what: name of the file, for messages.
            voxel_size_nm: voxel size that replaces the voxel size in the file, nanometres, zyx.
            is_xyz: whether positions and voxel size in the file are in the order xyz instead of
                zyx. If the file states an order, this argument is ignored.

        Raises:
            VolumeError: the file has none of the formats.
            ChunkError: the arrays of the file do not match.
        """
        try:
            found = _from_hdf5(data, what) if data.startswith(SIGNATURE) else _from_json(data, what)
            order = found.pop("order", "xyz" if is_xyz else "zyx")
            synapses = cls(**_fields(found, order))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, ChunkError):
                msg = f"{what}: {error}"
                raise ChunkError(msg) from error
            msg = (
                f"{what} does not contain synapses in a known format ({error}); it must be a "
                "list of DVID elements, or contain pre, of shape (n, 3), and optionally post, of "
                "shape (m, 4)"
            )
            raise VolumeError(msg) from error
        return synapses if voxel_size_nm is None else replace(synapses, voxel_size_nm=voxel_size_nm)


def _fields(found: Mapping[str, Any], order: str) -> dict[str, Any]:
    """Convert the arrays of a file to the arguments of `Synapses`."""
    turn = slice(None, None, -1 if order == "xyz" else 1)
    post = np.asarray(found["post"]).reshape(-1, 4) if found.get("post") is not None else None
    size = found.get("resolution")
    if size is not None:
        z, y, x = (float(v) for v in np.ravel(size)[turn])
        size = (z, y, x)
        if not min(size) > 0:
            msg = f"the resolution must be positive (nm, zyx), but is {size}"
            raise ValueError(msg)
    fields: dict[str, Any] = {
        "pre": _voxels(np.asarray(found["pre"]).reshape(-1, 3)[:, turn]),
        "voxel_size_nm": size,
        "users": tuple(str(user) for user in found.get("users", ())),
    }
    if post is not None and len(post):
        fields["post"] = _voxels(post[:, 1:][:, turn])
        fields["post_to_pre"] = _voxels(post[:, 0])
    for name in (*_OF_PRE, *_OF_POST):
        values = found.get(name)
        if values is not None:
            fields[name] = np.asarray(values)
    return fields


def _voxels(values: NDArray[Any]) -> NDArray[Any]:
    """Round positions, which may be floats in files, to whole voxels."""
    return np.rint(values).astype(np.int64) if values.dtype.kind == "f" else values.astype(np.int64)


def _from_hdf5(data: bytes, what: str) -> dict[str, Any]:
    arrays, attributes = unpack(data, what, ["users"])
    if "pre" not in arrays and "tbars" in arrays:
        arrays["pre"] = arrays["tbars"]
    users = attributes.get("users")
    if users is not None:
        text = users.decode() if isinstance(users, bytes) else str(users)
        arrays["users"] = text.split(";") if text else []
    return arrays


def _from_json(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = parse_json(data, None)
    except ValueError as error:
        msg = f"{what} is neither an HDF5 nor a JSON file: {error}"
        raise VolumeError(msg) from error
    if isinstance(found, list):
        return _from_dvid(found, what)
    if "pre" in found or "order" not in found:
        return dict(found)
    order, resolution = found.pop("order"), found.pop("resolution", None)
    synapses = list(found.values())
    posts = [synapse.get("postsynapses", []) for synapse in synapses]
    rows = [[index, *point] for index, points in enumerate(posts) for point in points]
    return {
        "order": "".join(order),
        "resolution": resolution,
        "pre": [synapse["coord"] for synapse in synapses],
        "post": rows or None,
    }


def _from_dvid(elements: Sequence[Mapping[str, Any]], what: str) -> dict[str, Any]:
    """Return the arrays of a list of DVID elements (positions xyz).

    A postsynaptic element belongs to the presynaptic element that its first relation names. If the
    presynaptic element does not exist, for example because it was deleted, the postsynaptic element
    is left out.
    """
    pres = [element for element in elements if "Pre" in element["Kind"]]
    rows = {tuple(element["Pos"]): row for row, element in enumerate(pres)}
    posts, partners = [], []
    for element in elements:
        if "Post" in element["Kind"]:
            partner = rows.get(tuple(element["Rels"][0]["To"])) if element.get("Rels") else None
            if partner is not None:
                posts.append(element)
                partners.append(partner)
    lost = sum("Post" in element["Kind"] for element in elements) - len(posts)
    if lost:
        logger.warning("%s: left out %d postsynaptic points that have no T-bar", what, lost)

    def properties(found: Sequence[Mapping[str, Any]], name: str, default: Any) -> list[Any]:
        return [(element.get("Prop") or {}).get(name, default) for element in found]

    pre_users, post_users = properties(pres, "user", None), properties(posts, "user", None)
    users = sorted({user for user in (*pre_users, *post_users) if user is not None})
    ids = {user: index for index, user in enumerate(users)}
    return {
        "order": "xyz",
        "pre": [element["Pos"] for element in pres],
        "post": [[row, *post["Pos"]] for row, post in zip(partners, posts, strict=True)] or None,
        "pre_confidence": np.asarray(properties(pres, "conf", 1.0), np.float32),
        "post_confidence": np.asarray(properties(posts, "conf", 1.0), np.float32),
        "users": users,
        "pre_users": np.asarray([ids.get(user, -1) for user in pre_users], np.int32),
        "post_users": np.asarray([ids.get(user, -1) for user in post_users], np.int32),
    }
