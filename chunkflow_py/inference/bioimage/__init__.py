"""Packages of the BioImage Model Zoo: a network with its pre- and postprocessing.

```
folder or .zip          rdf.yaml or bioimageio.yaml: axes, processing, halo, weights
                        weights.pt, weights.onnx, ... architecture.py

package_files           find and unpack files, and check their checksums
package_description     read a description of format 0.4 or 0.5
package_processing      run the processing steps before and after the network
package_network         choose the weights, load the network, and reorder the axes of its arrays
model_package           read the whole package: `read_package`
```

The upper lines list the files of a package, the lower lines the modules that use these files.

The format: https://github.com/bioimage-io/spec-bioimage-io, model descriptions 0.4 and 0.5.
"""

from __future__ import annotations

from chunkflow_py.inference.bioimage.model_package import ModelPackage, read_package
from chunkflow_py.inference.bioimage.package_files import is_package
from chunkflow_py.inference.bioimage.package_processing import Normalization

__all__ = ["ModelPackage", "Normalization", "is_package", "read_package"]
