"""Replacements of the classes that plugins for chunkflow 1.x import from ``chunkflow``.

The classes are a new implementation with the names, attributes and behaviour of chunkflow's Python
interface, as far as plugins use this interface. Only plugins use the classes.

| module     | contains                                                                            |
|------------|-------------------------------------------------------------------------------------|
| `places`   | Cartesian, BoundingBox, BoundingBoxes                                               |
| `chunks`   | Chunk, Image, Segmentation, ProbabilityMap, AffinityMap                             |
| `objects`  | Synapses, PointCloud                                                                |
| `imports`  | ``import chunkflow`` while a plugin is loaded or called                             |
| `boundary` | conversion of a task's items to these classes, and back                             |
"""
