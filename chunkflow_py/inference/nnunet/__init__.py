"""Networks that nnU-Net v2 has trained, run as nnU-Net itself runs them.

```
trained folder      plans.json  dataset.json  fold_0/checkpoint_final.pth  fold_1/...
   | import-model
imported .zip       nnunet.json  plans.json  dataset.json  weights/fold_0.pt  ...   (no code)

nnunet_files        find and read the files in a folder or zip, and refuse files that are too large
plans               read plans.json and dataset.json
plan_resampling     resample images as the plan describes
checkpoints         read the weights of one fold
ensemble            run the networks of all folds on mirror images, and average the results
trained_model       read the whole model (`read_model`), or import a model (`write_model`)
```

The upper lines list the files of a model, the lower lines the modules that use these files.

The behaviour follows the source code of nnU-Net 2.8, https://github.com/MIC-DKFZ/nnUNet.
"""

from __future__ import annotations

from chunkflow_py.inference.nnunet.trained_model import TrainedModel, read_model, write_model

__all__ = ["TrainedModel", "read_model", "write_model"]
