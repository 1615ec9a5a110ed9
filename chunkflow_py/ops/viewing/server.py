"""Neuroglancer's web server in this process, which shows the items of a task as layers."""

from __future__ import annotations

import json
import logging
import re
import secrets
import socket
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.decoding import parse_json
from chunkflow_py.errors import ChunkError, ChunkflowError, VolumeError, needs_extra
from chunkflow_py.ops.viewing.colours import CHANNEL_COLOURS
from chunkflow_py.segmentation.labels.object_folder import ObjectFolder, folder_of
from chunkflow_py.store import open_store
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.location import Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

logger = logging.getLogger(__name__)

# Documents by which the format of a volume is recognised, and what Neuroglancer calls the format.
_NEUROGLANCER_READS = {
    "info": "precomputed", "zarr.json": "zarr3", ".zattrs": "zarr2", ".zarray": "zarr2",
    "attributes.json": "n5",
}  # fmt: skip
MESHES_AT_MOST = 100  # of a folder of meshes alone, selected at first


class ViewerServer:
    """Runs Neuroglancer's web server, one per process, with a viewer for each set of items.

    Args:
        bind_address: address to listen on; with 127.0.0.1, only this machine can connect.
        port: port to listen on; 0 selects a free port.
    """

    def __init__(self, bind_address: str = "127.0.0.1", port: int = 0) -> None:
        """Start the server.

        Raises:
            VolumeError: the server cannot listen on the address and port.
            MissingExtraError: neuroglancer is not installed.
        """
        with needs_extra("view", "neuroglancer"):
            import neuroglancer
            from neuroglancer import server
        self._library: Any = neuroglancer
        neuroglancer.set_server_bind_address(bind_address, port)
        # Check first: if the library cannot listen, it leaves its socket open.
        check_free(bind_address, port)
        server.start()
        self._server: Any = server.global_server
        self._viewers: list[Any] = []

    def show(
        self,
        items: Mapping[str, Any],
        voxel_size_nm: tuple[float, float, float] | None = None,
        segments: Sequence[int] = (),
        mesh_path: str | None = None,
        volumes: Mapping[str, str] | None = None,
    ) -> str:
        """Make a viewer with layers for items and volumes, and return the address of the viewer.

        Args:
            items: chunks, points, synapses or skeletons by layer name; ``None`` is skipped.
            voxel_size_nm: voxel size, nanometres, zyx (default: the voxel size of each chunk).
            segments: ids to select initially in layers of segmentations.
            mesh_path: URL of a folder of Neuroglancer meshes, or of a volume with such a folder.
                The meshes are shown in the layer of the first segmentation or, if there is none, in
                a separate layer.
            volumes: addresses of stored volumes by layer name. The page reads the blocks that it
                shows, through this server.

        Raises:
            ChunkError: an item cannot be shown.
            VolumeError: the meshes or a volume cannot be read, or Neuroglancer cannot read the
                format of a volume.
        """
        from chunkflow_py.ops.viewing import layers, object_layers
        from chunkflow_py.ops.viewing.colours import kind_of
        from chunkflow_py.ops.viewing.items import middle_of

        folder = None if mesh_path is None else folder_of(mesh_path, "mesh")
        meshes = None if folder is None else self._served(folder)
        chunk = next((item for item in items.values() if isinstance(item, Chunk)), None)
        stored = {name: open_volume(url) for name, url in (volumes or {}).items()}
        shown: Any = chunk or next(iter(stored.values()), None)
        scales = voxel_size_nm or (shown.voxel_size_nm if shown else (1.0, 1.0, 1.0))
        if shown is None:
            middle = middle_of(items, scales)
        else:
            box = chunk.bbox if chunk else shown.bounds
            middle = tuple((a + b) / 2 for a, b in zip(box.start, box.stop, strict=True))
        viewer = self._library.Viewer()
        with viewer.txn() as state:
            for name, item in items.items():
                if isinstance(item, Chunk):
                    own_meshes = meshes if kind_of(item) == "segmentation" else None
                    state.layers[name] = layers.layer_of(item, voxel_size_nm, segments, own_meshes)
                    meshes = None if own_meshes else meshes
                elif item is not None:
                    state.layers[name] = object_layers.layer_of(name, item, scales)
            for name, volume in stored.items():
                coarsest = open_volume((volumes or {})[name], max(volume.mips))
                address = self._served_volume((volumes or {})[name])
                made = layers.layers_of_volume(name, coarsest, address, segments)
                for number, (title, layer) in enumerate(made.items()):
                    state.layers[title] = layer
                    state.layers[title].visible = number < len(CHANNEL_COLOURS)
            if meshes is not None and folder is not None:
                selected = segments or _mesh_ids(folder.names())
                state.layers["meshes"] = layers.mesh_layer(meshes, selected)
            if not state.layers:
                msg = (
                    f"there is nothing to show, because no item of --inputs ({', '.join(items)}) "
                    "has a value; give the name of another item"
                )
                raise ChunkError(msg)
            state.dimensions = self._library.CoordinateSpace(
                names=["x", "y", "z"], units="nm", scales=scales[::-1]
            )
            if middle is not None:
                state.position = middle[::-1]
        self._viewers.append(viewer)  # the server keeps only a weak reference
        return str(viewer.get_viewer_url())

    def _served_volume(self, url: str) -> str:
        """Serve a stored volume to the page, and return the address for the page.

        Raises:
            VolumeError: Neuroglancer cannot read the format.
        """
        folder = ObjectFolder(Location.parse(url).store_url)
        for key, scheme in _NEUROGLANCER_READS.items():
            if folder.get(key) is not None:
                return self._served(folder, scheme)
        msg = (
            f"Neuroglancer cannot read the format of {url}; convert it with: chunkflow convert "
            f"{url} zarr://NAME.zarr"
        )
        raise VolumeError(msg)

    def _served(self, folder: ObjectFolder, scheme: str = "precomputed") -> str:
        """Serve a folder of any store to the page, and return the address for the page."""
        # Only pages that know this token can read the folder.
        token = secrets.token_hex(16)
        rule = (rf"/objects/{token}/(.*)", _objects_handler(), {"folder": folder})
        self._server.app.add_handlers(r".*", [rule])
        return f"{scheme}://{self._server.server_url}/objects/{token}"

    @property
    def viewer(self) -> Any:
        """The Neuroglancer viewer of the latest call of `show`."""
        return self._viewers[-1]

    def clear(self) -> None:
        """Release the items of all viewers."""
        self._viewers.clear()

    def stop(self) -> None:
        """Release all items, and stop the server."""
        self.clear()
        self._library.stop()


def layer_names(urls: Sequence[str]) -> dict[str, str]:
    """Return a dictionary from layer name to the address of a volume, one entry per address.

    The name of a layer is the last part of the address. If the last parts of two addresses are
    equal, the whole addresses are the names.
    """
    ends = [url.rstrip("/|:").rpartition("/")[2] for url in urls]
    return {end if ends.count(end) == 1 else url: url for url, end in zip(urls, ends, strict=True)}


def can_show(url: str) -> bool:
    """Return whether a volume exists at an address, in a format that Neuroglancer reads."""
    try:
        folder = ObjectFolder(Location.parse(url).store_url)
        return any(folder.get(key) is not None for key in _NEUROGLANCER_READS)
    except ChunkflowError:
        return False


def check_free(bind_address: str, port: int) -> None:
    """Check that a server can listen on the address and port.

    Raises:
        VolumeError: a server cannot listen there; the message gives the reason.
    """
    try:
        family = socket.AF_INET6 if ":" in bind_address else socket.AF_INET
        socket.create_server((bind_address, port), family=family).close()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        msg = (
            f"cannot listen on {bind_address}:{port}: {reason}; give another --port, or leave "
            "--port out to use any free port"
        )
        raise VolumeError(msg) from error


def _mesh_ids(keys: Iterable[str]) -> list[int]:
    """Return the ids of objects that have a mesh: the lowest ids, up to `MESHES_AT_MOST` of them.

    The mesh of object 7 has the key ``7:0`` or ``7.index``.
    """
    matches = (re.fullmatch(r"([0-9]+)(?::0|\.index)", key) for key in keys)
    return sorted(int(match[1]) for match in matches if match)[:MESHES_AT_MOST]


def _known_version(document: bytes, url: str) -> bytes:
    """Return a zarr.json with OME-Zarr 0.6 metadata rewritten to 0.5, as Neuroglancer needs.

    Raises:
        VolumeError: the document is damaged, or OME-Zarr 0.5 cannot describe the image.
    """
    from chunkflow_py.volume.zarr.ome_metadata import as_version_05
    from chunkflow_py.volume.zarr.zarr_metadata import damage

    with damage(url, "zarr.json"):
        content = parse_json(document)
        changed = as_version_05(content, url)
        return document if changed == content else json.dumps(changed).encode()


def _objects_handler() -> type:
    """Return the request handler for the objects of a store."""
    import tornado.ioloop
    import tornado.web

    class ObjectsHandler(tornado.web.RequestHandler):  # type: ignore[misc, unused-ignore]
        """Sends whole objects, or the byte ranges that a request names (RFC 9110)."""

        def initialize(self, folder: ObjectFolder) -> None:
            self._folder, self._store = folder, open_store(folder.url)

        async def get(self, key: str) -> None:
            wanted = re.fullmatch(r"bytes=([0-9]*)-([0-9]+)", self.request.headers.get("Range", ""))
            loop = tornado.ioloop.IOLoop.current()
            try:
                start, data, size = await loop.run_in_executor(None, self._read, key, wanted)
            except VolumeError as error:
                logger.warning("cannot read %s of %s: %s", key, self._folder.url, error)
                self.send_error(502)
                return
            if data is None:
                self.send_error(404)
                return
            if wanted:
                self.set_status(206)
                last = start + len(data) - 1
                self.set_header("Content-Range", f"bytes {start}-{last}/{size}")
            self.set_header("Content-Type", "application/octet-stream")
            self.finish(data)

        async def head(self, key: str) -> None:
            """Send the size of an object."""
            await self.get(key)

        def _read(
            self, key: str, wanted: re.Match[str] | None
        ) -> tuple[int, bytes | None, int | str]:
            if wanted and wanted[1]:
                start, stop = int(wanted[1]), int(wanted[2]) + 1
                return start, self._store.get_range(key, start, stop), "*"
            if wanted:  # the last bytes
                size = self._store.size(key) or 0
                start = max(0, size - int(wanted[2]))
                return start, self._store.get_range(key, start, size), size
            data = self._folder.get(key)
            if data is not None and key == "zarr.json":
                data = _known_version(data, self._folder.url)
            if data is None and key == "info":  # older folders have none
                data = json.dumps({"@type": "neuroglancer_legacy_mesh"}).encode()
            return 0, data, len(data or b"")

    return ObjectsHandler
