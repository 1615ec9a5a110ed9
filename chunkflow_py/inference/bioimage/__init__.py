"""Packages of the BioImage Model Zoo: a network with its pre- and postprocessing.

```
folder or .zip          rdf.yaml or bioimageio.yaml: axes, processing, halo, weights
                        weights.pt, weights.onnx, ... architecture.py

package_files           folder or zip, and the checksums of its files
package_description     the description, from format 0.4 or 0.5 to one common form
package_processing      processing steps before and after the network
package_network         choice of the weights, and the network with its axes reordered
model_package           the whole package: `read_package`
```

The format: https://github.com/bioimage-io/spec-bioimage-io, model descriptions 0.4 and 0.5.
"""

from __future__ import annotations

from chunkflow_py.inference.bioimage.model_package import ModelPackage, read_package
from chunkflow_py.inference.bioimage.package_files import is_package
from chunkflow_py.inference.bioimage.package_processing import Normalization

__all__ = ["ModelPackage", "Normalization", "is_package", "read_package"]
