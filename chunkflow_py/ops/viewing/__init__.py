"""Eyes: what chunks, points, synapses, skeletons and times look like.

| module                | what                                                    |
|-----------------------|---------------------------------------------------------|
| ``colours``           | voxels as grey values and colours, alike in every view  |
| ``items``             | where points, synapses and skeletons lie                |
| ``server``            | Neuroglancer's server, and the meshes of any store      |
| ``layers, objects``   | what it shows: of voxels, of other items                |
| ``micro``             | cloud-volume's microviewer                              |
| ``showing``           | a view is up until it is interrupted                    |
| ``napari_layers``     | what napari is given                                    |
| ``sheet``             | contact sheets                                          |
| ``run_log, metrics``  | where time went: in tables and plots, in CloudWatch     |
"""
