"""Classes that plugins written for chunkflow 1.x import as ``chunkflow``.

The classes are a new implementation with the names, attributes and behaviour of chunkflow's Python
interface, as far as plugins use it. They exist only at the boundary of a plugin:

| module     | contains                                                                            |
|------------|-------------------------------------------------------------------------------------|
| `places`   | Cartesian, BoundingBox, BoundingBoxes                                               |
| `chunks`   | Chunk, Image, Segmentation, ProbabilityMap, AffinityMap                             |
| `objects`  | Synapses, PointCloud                                                                |
| `imports`  | ``import chunkflow`` while a plugin is loaded or called                             |
| `boundary` | a task's items as these classes, and back                                           |
"""
