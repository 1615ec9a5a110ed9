"""Replacements of the classes that plugins for chunkflow 1.x import from ``chunkflow``.

The classes reimplement the part of chunkflow's Python interface that plugins use, with the same
names, attributes and behaviour. The rest of chunkflow_py does not use these classes.

| module     | contains                                                                            |
|------------|-------------------------------------------------------------------------------------|
| `places`   | Cartesian, BoundingBox, BoundingBoxes                                               |
| `chunks`   | Chunk, Image, Segmentation, ProbabilityMap, AffinityMap                             |
| `objects`  | Synapses, PointCloud                                                                |
| `imports`  | ``import chunkflow`` while a plugin is loaded or called                             |
| `boundary` | conversion of a task's items to these classes, and back                             |
"""
