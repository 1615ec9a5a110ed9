"""Packages of the BioImage Model Zoo: a network, and what has to be done around it.

```
folder, or .zip       rdf.yaml  or bioimageio.yaml: axes, processing, halo, weights
                      weights.pt, weights.onnx, ... architecture.py

files.py        folder or zip, and the sums of its files
fields.py       reading fields of the description, each error with its field
description.py  tensors of format 0.4 and 0.5, in one form
processing.py   steps before and after the network
weights.py      which weights, and the network in them
network.py      the network between its own axes and ours
package.py      all of it: `read_package`
```

The format: https://github.com/bioimage-io/spec-bioimage-io, model descriptions 0.4 and 0.5.
"""

from __future__ import annotations

from chunkflow_py.inference.bioimage.files import is_package
from chunkflow_py.inference.bioimage.package import ModelPackage, read_package
from chunkflow_py.inference.bioimage.processing import Normalization

__all__ = ["ModelPackage", "Normalization", "is_package", "read_package"]
