"""MONAI bundles: a network with the transforms and the sliding window of its ``inference.json``.

```
folder or .zip          configs/metadata.json, configs/inference.json (or .yaml)
                        models/model.pt (a state dict), models/model.ts (TorchScript)

bundle_files            find and read the files in a folder or zip
bundle_config           read values of the config: follow references, never evaluate expressions
bundle_transforms       read the transforms before and after the network
bundle_orientation      compare the axes of the network with those of a patch
bundle_spacing          resample the image as the transform `Spacing` does
bundle_network          choose the weights, make the network, and reorder the axes of its arrays
bundle                  read the whole bundle: `read_bundle`
bundle_options          complete the options of `inference` from a bundle
```

The upper lines list the files of a bundle, the lower lines the modules that use these files.

The format: https://monai.readthedocs.io/en/stable/mb_specification.html
"""

from __future__ import annotations

from chunkflow_py.inference.monai_bundle.bundle import Bundle, read_bundle
from chunkflow_py.inference.monai_bundle.bundle_files import is_bundle
from chunkflow_py.inference.monai_bundle.bundle_options import with_bundle

__all__ = ["Bundle", "is_bundle", "read_bundle", "with_bundle"]
