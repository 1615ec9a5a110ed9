"""Eyes: what chunks, points, synapses, skeletons and times look like.

| module      | what                                                            |
|-------------|-----------------------------------------------------------------|
| ``colours`` | voxels as grey values and colours, the same in every picture    |
| ``server``  | Neuroglancer's server; ``layers``, ``objects``: what it shows    |
| ``showing`` | a view is up until it is interrupted                            |
| ``napari``  | the layers that napari is given                                 |
| ``micro``   | cloud-volume's microviewer                                      |
| ``sheet``   | contact sheets                                                  |
| ``run_log`` | where the time of a run went                                    |
| ``metrics`` | the same for CloudWatch                                         |
| ``files``   | small files below the URL of any store                          |
"""
