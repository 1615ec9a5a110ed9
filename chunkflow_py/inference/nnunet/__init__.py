"""Networks that nnU-Net v2 has trained, with everything that its predictor does around them.

```
trained folder      plans.json  dataset.json  fold_0/checkpoint_final.pth  fold_1/...
   | import-model
imported .zip       nnunet.json  plans.json  dataset.json  weights/fold_0.pt  ...   only data

model_files         folder or zip: finds and reads files, with limits
plans               plans.json and dataset.json: sizes, axes, normalisation, labels, architecture
checkpoints         the weights of one fold
ensemble            the network: mean over folds and mirror images, in the axes of the image
trained_model       all of these together: `read_model`, `write_model`
```

The behaviour follows the source code of nnU-Net 2.8, https://github.com/MIC-DKFZ/nnUNet.
"""

from __future__ import annotations

from chunkflow_py.inference.nnunet.trained_model import TrainedModel, read_model, write_model

__all__ = ["TrainedModel", "read_model", "write_model"]
