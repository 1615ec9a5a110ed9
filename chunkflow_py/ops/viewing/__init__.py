"""Viewers and plots of chunks, points, synapses and skeletons, and tables of times.

| module                | content                                                 |
|-----------------------|---------------------------------------------------------|
| ``colours``           | grey levels and colours of voxels, equal in all viewers |
| ``items``             | positions of points, synapses and skeletons             |
| ``server``            | Neuroglancer's server, which also serves meshes         |
| ``layers``            | Neuroglancer layers of chunks and meshes                |
| ``object_layers``     | Neuroglancer layers of points, synapses and skeletons   |
| ``micro``             | server of cloud-volume's microviewer                    |
| ``showing``           | waiting until the user ends a view                      |
| ``napari_layers``     | napari layers of all items                              |
| ``sheet``             | contact sheets: PNG images of chunks                    |
| ``run_log``           | tables and plots of the times of operators              |
| ``metrics``           | client that sends the times of operators to CloudWatch  |
"""
