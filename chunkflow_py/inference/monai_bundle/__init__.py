"""MONAI bundles: a network with the transforms and the sliding window of its ``inference.json``.

```
folder or .zip          configs/metadata.json, configs/inference.json (or .yaml)
                        models/model.pt (a state dict), models/model.ts (TorchScript)

bundle_files            folder or zip, and the files inside
bundle_config           the config: references are followed, expressions are never evaluated
bundle_transforms       transforms before and after the network
bundle_orientation      order and direction of the network's axes
bundle_network          choice of the weights, and the network with its axes reordered
bundle                  the whole bundle: `read_bundle`
bundle_options          options of `inference` that a bundle completes
```

The format: https://monai.readthedocs.io/en/stable/mb_specification.html
"""

from __future__ import annotations

from chunkflow_py.inference.monai_bundle.bundle import Bundle, read_bundle
from chunkflow_py.inference.monai_bundle.bundle_files import is_bundle
from chunkflow_py.inference.monai_bundle.bundle_options import with_bundle

__all__ = ["Bundle", "is_bundle", "read_bundle", "with_bundle"]
