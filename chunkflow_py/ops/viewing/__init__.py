"""Viewers and plots of chunks, points, synapses and skeletons, and tables of times.

| module                | content                                                 |
|-----------------------|---------------------------------------------------------|
| ``colours``           | voxels as grey levels and colours, equal in every view  |
| ``items``             | positions of points, synapses and skeletons             |
| ``server``            | Neuroglancer's server, and the meshes of any store      |
| ``layers, objects``   | Neuroglancer layers of voxels, of other items           |
| ``micro``             | cloud-volume's microviewer                              |
| ``showing``           | waiting until the user ends a view                      |
| ``napari_layers``     | layers for napari                                       |
| ``sheet``             | contact sheets                                          |
| ``run_log, metrics``  | times per operator: tables and plots, CloudWatch        |
"""
