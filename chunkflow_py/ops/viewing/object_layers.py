"""Neuroglancer layers of points, synapses and skeletons."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from chunkflow_py.ops.viewing.items import lines_of, points_of, skeletons_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from chunkflow_py.core.skeleton import Skeleton

logger = logging.getLogger(__name__)

AT_MOST = 25_000  # points, and lines, that the page can handle, as they are part of its state

# Points and the starts of lines (pre) are yellow, the ends of lines (post) are cyan.
SHADER = """
#uicontrol vec3 pre color(default="yellow")
#uicontrol vec3 post color(default="cyan")
#uicontrol float size slider(min=1, max=30, default=8)
void main() {
  setPointMarkerColor(pre);
  setPointMarkerSize(size);
  setPointMarkerBorderWidth(0.0);
  setLineColor(pre, post);
  setLineWidth(2.0);
  setEndpointMarkerColor(pre, post);
  setEndpointMarkerSize(0.0, size);
  setEndpointMarkerBorderWidth(0.0, 0.0);
}
"""


def layer_of(
    name: str, item: Any, voxel_size_nm: tuple[float, float, float] = (1.0, 1.0, 1.0)
) -> Any:
    """Return the Neuroglancer layer of points, synapses or skeletons.

    Args:
        name: name of the item, for messages.
        item: points, synapses or skeletons; see `chunkflow_py.ops.viewing.items`.
        voxel_size_nm: voxel size, nanometres, zyx, for synapses that have no voxel size.

    Raises:
        ChunkError: the item is not points, synapses or skeletons.
    """
    skeletons = skeletons_of(item)
    if skeletons is not None:
        return _skeleton_layer(skeletons)
    points = points_of(name, item, voxel_size_nm)
    return _annotation_layer(name, points, *lines_of(item, voxel_size_nm))


def _nanometres(library: Any) -> Any:
    return library.CoordinateSpace(names=["x", "y", "z"], units="nm", scales=(1, 1, 1))


def _annotation_layer(
    name: str, points: NDArray[Any], begins: NDArray[Any], ends: NDArray[Any]
) -> Any:
    import neuroglancer

    if max(len(points), len(begins)) > AT_MOST:
        logger.warning(
            "%s has %d points and %d lines; the page shows the first %d of each",
            name, len(points), len(begins), AT_MOST,
        )  # fmt: skip
        points, begins, ends = (each[:AT_MOST] for each in (points, begins, ends))
    annotations: list[Any] = [
        neuroglancer.LineAnnotation(id=f"line{n}", point_a=a, point_b=b)
        for n, (a, b) in enumerate(zip(begins[:, ::-1], ends[:, ::-1], strict=True))
    ]
    annotations += [
        neuroglancer.PointAnnotation(id=str(n), point=point)
        for n, point in enumerate(points[:, ::-1])
    ]
    return neuroglancer.LocalAnnotationLayer(
        dimensions=_nanometres(neuroglancer), annotations=annotations, shader=SHADER
    )


def _skeleton_layer(skeletons: Mapping[int, Skeleton]) -> Any:
    import neuroglancer

    class Skeletons(neuroglancer.skeleton.SkeletonSource):  # type: ignore[misc]
        def get_skeleton(self, object_id: int) -> Any:
            if object_id not in skeletons:
                return None
            skeleton = skeletons[object_id]
            return neuroglancer.skeleton.Skeleton(skeleton.vertices_nm[:, ::-1], skeleton.edges)

    source = Skeletons(_nanometres(neuroglancer))
    return neuroglancer.SegmentationLayer(source=source, segments=list(skeletons))
