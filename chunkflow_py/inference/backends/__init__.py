"""Backends that run networks; `chunkflow_py.inference.backend_factory` creates one.

Each backend is a `Backend` (`backend_protocol.py`). `--framework` names the kind of the model:

| framework   | file                   | the model is                                              |
|-------------|------------------------|-----------------------------------------------------------|
| `identity`  | `backend_protocol.py`  | none: the input is the output                             |
| `pytorch`   | `network_backend.py`   | Python code, TorchScript, exported program, built-in name |
| `universal` | `universal_backend.py` | Python code with `PatchInferencer`, or a `pytorch` model  |
| `nnunet`    | `network_backend.py`   | a model that nnU-Net v2 has trained                       |

If a model file of Python code defines a function `pre_process`, this function runs before the
network. A function `post_process` runs after the network.

`--backend` names the library that runs a `pytorch` or `nnunet` model:

| backend       | file               | device                                           |
|---------------|--------------------|--------------------------------------------------|
| `torch`       | `torch_core.py`    | CPU, CUDA                                        |
| `openvino`    | `openvino_core.py` | CPU                                              |
| `onnxruntime` | `onnx_core.py`     | CPU, CUDA                                        |
| `auto`        |                    | device of the library that it chooses            |
"""
