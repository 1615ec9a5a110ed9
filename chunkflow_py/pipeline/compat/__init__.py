"""What a plugin that was written for chunkflow 1.x imports as ``chunkflow``.

The classes have the names, attributes and behaviour of chunkflow's Python interface, as far as
plugins use it, and are written anew here. They exist only at the boundary of a plugin:

| module     | holds                                                                               |
|------------|-------------------------------------------------------------------------------------|
| `places`   | Cartesian, BoundingBox, BoundingBoxes                                               |
| `chunks`   | Chunk, Image, Segmentation, ProbabilityMap, AffinityMap                             |
| `objects`  | Synapses, PointCloud                                                                |
| `imports`  | ``import chunkflow`` while a plugin is loaded or called                             |
| `boundary` | a task's items as these classes, and back                                           |
"""
