"""Backends that run networks; `chunkflow_py.inference.backend_factory` creates one.

Each is a `Backend` (`backend_protocol.py`). `--framework` names the kind of the model:

| framework   | file                   | the model is                                              |
|-------------|------------------------|-----------------------------------------------------------|
| `identity`  | `backend_protocol.py`  | none: the input is the output                             |
| `pytorch`   | `network_backend.py`   | Python code, TorchScript, exported program, built-in name |
| `universal` | `universal_backend.py` | Python code with `PatchInferencer`, or a `pytorch` model  |

`--backend` names the library that runs a `pytorch` model. If the model file defines the functions
`pre_process` and `post_process`, they run before and after the library:

| backend       | file               | device                                           |
|---------------|--------------------|--------------------------------------------------|
| `torch`       | `torch_core.py`    | CPU, CUDA                                        |
| `openvino`    | `openvino_core.py` | CPU                                              |
| `onnxruntime` | `onnx_core.py`     | CPU, CUDA                                        |
| `auto`        |                    | the fastest of them whose float32 error is small |
"""
