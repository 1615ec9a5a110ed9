"""Packages of the BioImage Model Zoo run as their description says, or say why they cannot."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import yaml
from bioimage_packages import (
    Moved,
    describe,
    input_0_4,
    input_0_5,
    make_network,
    noise,
    output_0_4,
    output_0_5,
    write_description,
    write_package,
    zipped,
)

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import MissingExtraError, ModelError, OptionError
from chunkflow_py.inference import Engine, EngineSettings, PatchGeometry
from chunkflow_py.inference.backends.network_backend import NetworkBackend
from chunkflow_py.inference.backends.torch_core import TorchCore
from chunkflow_py.inference.bioimage import is_package, read_package

VERSIONS = ["0.4.9", "0.5.11"]
KINDS = ["torchscript", "onnx", "pytorch_state_dict"]


def run(package, batch):
    """Return what the loaded network gives, without gradients."""
    with torch.inference_mode():
        return package.load()(batch)


@pytest.mark.parametrize("place", ["folder", "zip", "description"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_kind_of_weights_gives_the_same(tmp_path, version, kind, place):
    """TorchScript, ONNX and a state dict with code, in a folder or zip, are the same network."""
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnx")
    folder = write_package(tmp_path / "net", describe(version), kind=kind)
    path = {"folder": folder, "zip": zipped(folder), "description": folder / "rdf.yaml"}[place]
    assert is_package(str(path))
    package = read_package(str(path))
    assert (package.weights.format, package.spatial_dims) == (kind, 3)
    assert (package.num_input_channels, package.num_output_channels) == (1, 2)
    assert (package.outputs, package.output_channels) == (("map",), (2,))
    assert package.is_program == (kind != "pytorch_state_dict")
    for batch in (noise(1, 1, 4, 6, 8), noise(2, 1, 5, 4, 7)):
        with torch.inference_mode():
            expected = make_network()(batch)
        torch.testing.assert_close(run(package, batch), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_whole_run(tmp_path, version):
    """The engine with all that a package says gives what the description asks for."""
    if version == "0.4.9":
        fixed = {"name": "zero_mean_unit_variance", "kwargs": {
            "mode": "fixed", "axes": "zyx", "mean": [100.0], "std": [25.0]}}  # fmt: skip
        inputs = [input_0_4(preprocessing=[fixed])]
        outputs = [output_0_4(halo=[0, 0, 1, 2, 2], postprocessing=[{"name": "sigmoid"}])]
    else:
        fixed = {"id": "fixed_zero_mean_unit_variance", "kwargs": {"mean": 100.0, "std": 25.0}}
        inputs = [input_0_5(preprocessing=[fixed])]
        outputs = [output_0_5(postprocessing=[{"id": "sigmoid"}])]
        for axis, halo in zip("zyx", (1, 2, 2)):
            next(a for a in outputs[0]["axes"] if a.get("id") == axis)["halo"] = halo
    folder = write_package(tmp_path / "net", describe(version, inputs, outputs))
    package = read_package(str(folder))
    assert package.margin == (1, 2, 2)
    assert package.activation == "sigmoid"
    image = np.random.default_rng(0).integers(0, 256, (12, 20, 24), np.uint8)
    patch = package.nearest_patch_size(Zyx(9, 11, 12))
    assert patch == (8, 12, 12)  # halfway is rounded to an even number of steps
    output_patch = patch - package.margin * 2
    package.check_sizes(patch, output_patch, 1)
    settings = EngineSettings(
        PatchGeometry(patch, output_patch, Zyx(2, 2, 2)),
        num_input_channels=package.num_input_channels,
        num_output_channels=package.num_output_channels,
        normalizer=package.normalization.normalizer(1),
        activation=package.activation,
    )
    shape, device = (1, 1, *patch), torch.device("cpu")
    backend = NetworkBackend(
        TorchCore(package.load(), shape, device=device), model=str(folder), shape=shape,
        output_patch_size=output_patch, num_output_channels=2, device=device,
    )  # fmt: skip
    found = Engine(backend, settings).run(image, BoundingBox.from_size((0, 0, 0), image.shape))
    ready = (torch.from_numpy(image).to(torch.float32) - 100) / 25
    with torch.inference_mode():
        expected = make_network()(ready[None, None]).sigmoid()[0].numpy()
    # Away from the faces, where the engine mirrors and the network alone pads with zero.
    np.testing.assert_allclose(found[:, 1:-1, 1:-1, 1:-1], expected[:, 1:-1, 1:-1, 1:-1], atol=1e-5)


ORDERS = [
    ("bczyx", (0, 1, 2, 3, 4), (0, 1, 2, 3, 4), ()),
    ("bzyxc", (0, 4, 1, 2, 3), (0, 2, 3, 4, 1), ()),
    ("bcxyz", (0, 1, 4, 3, 2), (0, 1, 4, 3, 2), ()),
    ("czyx", (0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (0,)),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("axes", "to_first", "from_first", "squeeze"), ORDERS)
def test_every_order_of_axes(tmp_path, version, axes, to_first, from_first, squeeze):
    """A network with channels last, x before z or no batch is given and gives our order."""
    first, last = (input_0_4, output_0_4) if version == "0.4.9" else (input_0_5, output_0_5)
    sizes = {"b": 1, "c": 1, "z": 4, "y": 5, "x": 6}
    folder = write_package(
        tmp_path / "net",
        describe(version, [first(axes)], [last(axes)]),
        network=Moved(make_network(), to_first, from_first, squeeze),
        example=torch.zeros([sizes[a] for a in axes]),
    )
    package = read_package(str(folder))
    assert package.max_batch_size == (None if "b" in axes else 1)
    batch = noise(1, 1, 4, 6, 8)
    with torch.inference_mode():
        expected = make_network()(batch)
    torch.testing.assert_close(run(package, batch), expected)


@pytest.mark.parametrize("axes", ["bcyx", "byx", "yx"])
def test_networks_of_sections(tmp_path, axes):
    """A 2D network, also without axes of batch and channel, takes and gives (n, c, y, x)."""

    class Bare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = make_network(dims=2, outputs=1)

        def forward(self, batch):
            shape = (1,) * (4 - len(axes))
            full = batch.reshape(*shape, *batch.shape) if len(axes) == 2 else batch
            full = full.unsqueeze(1) if len(axes) == 3 else full
            return self.network(full).reshape(batch.shape)

    inputs, outputs = [input_0_5(axes)], [output_0_5(axes, channels=1)]
    folder = write_package(
        tmp_path / "net",
        describe("0.5.3", inputs, outputs),
        network=Bare(),
        example=torch.zeros(*[1] * (len(axes) - 2), 6, 6),
    )
    package = read_package(str(folder))
    assert (package.spatial_dims, package.margin) == (2, (0, 0, 0))
    assert package.patch_size == (1, 512, 512)
    assert package.nearest_patch_size(Zyx(7, 3, 33)) == (7, 4, 32)
    batch = noise(1, 1, 6, 6)
    with torch.inference_mode():
        expected = make_network(dims=2, outputs=1)(batch)
    torch.testing.assert_close(run(package, batch), expected)


class Two(torch.nn.Module):
    """Two outputs, of other sizes: one is cut by 1 on each side."""

    def __init__(self, as_dict=False):
        super().__init__()
        self.network, self.as_dict = make_network(outputs=3), as_dict

    def forward(self, batch):
        """Return logits and a border."""
        found = self.network(batch)
        logits, border = found[:, :2], found[:, 2:, 1:-1, 1:-1, 1:-1]
        return {"border": border, "logits": logits} if self.as_dict else (logits, border)


@pytest.mark.parametrize("border_step", ["sigmoid", "softmax", None])
def test_several_outputs(tmp_path, border_step):
    """They are returned by name, of one size, each with what its own description asks for."""
    steps = [{"id": border_step}] if border_step else []
    outputs = [
        output_0_5(id="logits", postprocessing=[{"id": "softmax", "kwargs": {"axis": "channel"}}]),
        output_0_5(id="border", channels=1, offset=-2, postprocessing=steps),
    ]
    folder = write_package(
        tmp_path / "net", describe("0.5.4", outputs=outputs),
        network=Two(), example=noise(1, 1, 6, 6, 6),
    )  # fmt: skip
    package = read_package(str(folder))
    assert (package.outputs, package.output_channels) == (("logits", "border"), (2, 1))
    assert (package.margin, package.num_output_channels) == ((1, 1, 1), 3)
    assert package.activation == ("softmax" if border_step == "softmax" else "none")
    batch = noise(1, 1, 6, 6, 6)
    with torch.inference_mode():
        logits, border = Two()(batch)
        found = run(package, batch)
    inner = logits[..., 1:-1, 1:-1, 1:-1]
    torch.testing.assert_close(
        found["logits"], inner if border_step == "softmax" else inner.softmax(1)
    )
    torch.testing.assert_close(
        found["border"], border.sigmoid() if border_step == "sigmoid" else border
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_halo_beside_what_the_network_cuts(tmp_path, version):
    """What the network cuts and the halo of what is left make the margin together."""
    if version == "0.4.9":
        output = output_0_4(halo=[0, 0, 0, 1, 1])
        output["shape"]["offset"] = [0.0, 1.0, -1.0, -1.0, -1.0]
    else:
        output = output_0_5(offset=-2)
        for axis in output["axes"]:
            if axis.get("id") in {"y", "x"}:
                axis["halo"] = 1
    folder = write_package(tmp_path / "net", describe(version, outputs=[output]), padding=0)
    package = read_package(str(folder))
    assert package.margin == (1, 2, 2)
    batch = noise(1, 1, 6, 8, 8)
    with torch.inference_mode():
        expected = make_network(padding=0)(batch)[..., 1:-1, 1:-1]
    torch.testing.assert_close(run(package, batch), expected)


def test_sizes_that_the_network_takes(tmp_path):
    """The nearest size is named; margin and batch are checked as well."""
    inputs = [input_0_5()]
    inputs[0]["axes"][0]["size"] = 1
    inputs[0]["axes"][2]["size"] = 16
    outputs = [output_0_5()]
    outputs[0]["axes"][3]["halo"] = 4
    folder = write_package(tmp_path / "net", describe("0.5.0", inputs, outputs))
    package = read_package(str(folder))
    assert (package.minimum_patch_size, package.patch_step) == ((16, 4, 4), (0, 2, 2))
    assert package.patch_size == (16, 256, 256)
    assert package.nearest_patch_size(Zyx(20, 1, 15)) == (16, 4, 16)
    package.check_sizes(Zyx(16, 32, 64), Zyx(16, 24, 64), 1)
    with pytest.raises(OptionError, match=r"--input-patch-size 16 32 64$"):
        package.check_sizes(Zyx(20, 32, 64), Zyx(16, 24, 64), 1)
    with pytest.raises(OptionError, match=r"\(16, 24, 64\) .* use --output-patch-size 16 24 64"):
        package.check_sizes(Zyx(16, 32, 64), Zyx(16, 32, 64), 1)
    with pytest.raises(OptionError, match=r"removes a margin of \(0, 4, 0\)"):
        package.check_sizes(Zyx(16, 8, 64), Zyx(16, 8, 64), 1)
    with pytest.raises(OptionError, match="takes at most 1 .* a batch has 2; .*size 1"):
        package.check_sizes(Zyx(16, 32, 64), Zyx(16, 24, 64), 2)


@pytest.mark.parametrize(
    ("axes", "unit", "scale", "expected"),
    [
        ("bczyx", "micrometer", 0.04, (40, 40, 40)),
        ("bczyx", "angstrom", 80, (8, 8, 8)),
        ("bcyx", "nanometer", 4.5, (None, 4.5, 4.5)),
        ("bczyx", None, 2.0, None),
    ],
)
def test_voxel_size(tmp_path, axes, unit, scale, expected):
    """It is told in nanometres where the description has a unit."""
    more = {"scale": scale} | ({"unit": unit} if unit else {})
    inputs, outputs = [input_0_5(axes, more=more)], [output_0_5(axes, more=more)]
    folder = write_package(tmp_path / "net", describe("0.5.0", inputs, outputs), dims=len(axes) - 2)
    assert read_package(str(folder)).voxel_size_nm == expected


# --- weights ----------------------------------------------------------------------------------


def changed(folder, change):
    """Change the description of a package."""
    description = yaml.safe_load((folder / "rdf.yaml").read_text())
    change(description)
    write_description(folder, description)
    return str(folder)


def test_the_first_weights_that_are_on_the_disk(tmp_path):
    """TorchScript before ONNX before code, unless one is asked for, or only one is there."""
    folder = write_package(tmp_path / "net", describe("0.5.0"), kind="pytorch_state_dict")
    remote = {"source": "https://zenodo.org/api/records/1/files/weights.pt?download=1"}
    path = changed(folder, lambda d: d["weights"].update(torchscript=remote))
    assert read_package(path).weights.format == "pytorch_state_dict"
    with pytest.raises(
        ModelError, match=r"torchscript.source is 'https.*has no file weights.pt; download it"
    ):
        read_package(path, "torchscript")
    # Downloaded beside the description, it is used.
    (folder / "weights.pt").write_bytes(
        (write_package(tmp_path / "other", describe("0.5.0")) / "weights.pt").read_bytes()
    )
    assert read_package(path).weights.format == "torchscript"
    assert read_package(path, "pytorch_state_dict").weights.format == "pytorch_state_dict"
    with pytest.raises(ModelError, match="no weights in the format onnx.*torchscript"):
        read_package(path, "onnx")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["weights.pth", "code.py"])
def test_files_must_have_their_sum(tmp_path, version, name):
    """Changed weights, and changed code before it is run, are refused with both sums."""
    folder = write_package(tmp_path / "net", describe(version), kind="pytorch_state_dict")
    with (folder / name).open("ab") as file:
        file.write(b"\nraise SystemExit('this code was run')\n")
    for path in (folder, zipped(folder)):
        with pytest.raises(ModelError, match=f"{name} of .* has the SHA-256 .* expects "):
            read_package(str(path)).load()


def test_running_code_is_said(tmp_path, caplog):
    """A warning names the code of the package that is run."""
    folder = write_package(tmp_path / "net", describe("0.5.0"), kind="pytorch_state_dict")
    read_package(str(folder)).load()
    assert f"{folder}: executing its code in code.py" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w.clear(),
            "has no weights in",
        ),
        (
            lambda w: w.update(keras_hdf5=w.pop("pytorch_state_dict")),
            "but only in keras_hdf5",
        ),
        (lambda w: w["pytorch_state_dict"].update(source="../x.pth"), "must be inside the"),
        (
            lambda w: w["pytorch_state_dict"].update(source="/etc/passwd"),
            "must be inside the",
        ),
        (
            lambda w: w["pytorch_state_dict"].update(source="no.pth"),
            "package has no file no.pth",
        ),
        (lambda w: w["pytorch_state_dict"].pop("source"), "source is missing; it must be a string"),
        (
            lambda w: w["pytorch_state_dict"].update(
                architecture={"import_from": "os", "callable": "system", "kwargs": {}}
            ),
            r"architecture is .* must be a \.py file of the package",
        ),
        (
            lambda w: w["pytorch_state_dict"].update(architecture="os.system"),
            r"architecture is 'os.system'; the code must be a \.py file",
        ),
    ],
)
def test_weights_that_cannot_be_used(tmp_path, change, message):
    """Other formats, files outside of the package, missing ones and foreign code are refused."""
    folder = write_package(tmp_path / "net", describe("0.5.0"), kind="pytorch_state_dict")
    path = changed(folder, lambda d: change(d["weights"]))
    with pytest.raises(ModelError, match=message):
        read_package(path)


def test_code_that_makes_no_network(tmp_path):
    """A missing class, and arguments that it does not take, are named."""
    folder = write_package(tmp_path / "net", describe("0.5.0"), kind="pytorch_state_dict")

    def code(d):
        return d["weights"]["pytorch_state_dict"]["architecture"]

    path = changed(folder, lambda d: code(d).update(kwargs={"depth": 3}))
    with pytest.raises(ModelError, match="Net in code.py of .* failed with .*depth.*TypeError"):
        read_package(path).load()
    path = changed(folder, lambda d: code(d).update(callable="Other"))
    with pytest.raises(ModelError, match="names Other, but code.py defines no Other"):
        read_package(path).load()


# --- what is no package -----------------------------------------------------------------------


def test_what_is_no_package(tmp_path):
    """Folders and files of other things are told apart, and refused by name."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "net.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "fake.zip").write_bytes(b"nothing")
    assert not any(is_package(str(tmp_path / name)) for name in ("folder", "net.pt", "none"))
    for name, message in [
        ("folder", "contains no rdf.yaml"),
        ("fake.zip", "is not a zip archive; give a folder or .zip that contains rdf.yaml"),
        ("none", "does not exist"),
    ]:
        with pytest.raises(ModelError, match=message):
            read_package(str(tmp_path / name))
    for text, message in [
        ("a: [1", "is not valid YAML"),
        ("- 1", "a list, not a mapping"),
    ]:
        (tmp_path / "folder" / "rdf.yaml").write_text(text)
        with pytest.raises(ModelError, match=message):
            read_package(str(tmp_path / "folder"))


def test_without_a_reader_of_yaml(tmp_path, monkeypatch):
    """The library that is missing is named with the line that installs it."""
    folder = write_package(tmp_path / "net", describe("0.5.0"))
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'chunkflow_py\[bioimage\]'"):
        read_package(str(folder))


def test_other_names_of_the_description(tmp_path):
    """bioimageio.yaml and NAME.bioimageio.yaml are descriptions as well."""
    folder = write_package(tmp_path / "net", describe("0.5.0"))
    for name in ("bioimageio.yaml", "net.bioimageio.yaml"):
        file = next(folder.glob("*.yaml")).rename(folder / name)
        assert read_package(str(folder)).load()
        assert is_package(str(file))


SPACE_LAST = {"type": "space", "id": "x", "size": {"min": 4, "step": 2}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d.update(format_version="0.3.6"),
            "format_version is '0.3.6'; supported formats are 0.4",
        ),
        (lambda d: d.pop("format_version"), "format_version is missing"),
        (lambda d: d.update(type="dataset"), "type is 'dataset'; only a package of type model"),
        (lambda d: d.update(inputs=d["inputs"] * 2), "inputs is .* one input tensor"),
        (lambda d: d.update(outputs=[]), "outputs is .*must have at least one output"),
        (lambda d: d.update(inputs={"a": 1}), "inputs is .* must be a list"),
        (lambda d: d["inputs"][0].pop("axes"), "inputs.0.axes is missing"),
        (lambda d: d["inputs"][0]["axes"].pop(), "inputs.0.axes is .*must contain y and x"),
        (lambda d: d["inputs"][0]["axes"].append(SPACE_LAST), "inputs.0.axes is .* each only once"),
        (
            lambda d: d["inputs"][0]["axes"][2].update(type="time", id="t"),
            "inputs.0.axes.2 is .*its type must be batch, channel, or space",
        ),
        (
            lambda d: d["inputs"][0]["axes"][2].update(size={"tensor_id": "raw", "axis_id": "y"}),
            "inputs.0.axes.2.size is .* a number, or min and step",
        ),
        (
            lambda d: d["outputs"][0]["axes"].pop(2),
            "outputs.0.axes is .*the axes bczyx",
        ),
        (
            lambda d: d["outputs"][0]["axes"][2]["size"].update(axis_id="y"),
            "outputs.0.axes.2.size is .*refer to axis z of input 'raw'",
        ),
        (
            lambda d: d["outputs"][0]["axes"][2]["size"].update(offset=-3),
            "outputs.0 is .*the difference must be 0, or negative and even",
        ),
        (
            lambda d: d["outputs"][0]["axes"][2].update(size=8),
            "outputs.0 is .*along z the size of the",
        ),
        (
            lambda d: d["outputs"][0]["axes"][2].update(scale=2),
            "outputs.0.axes.2.scale is 2; the output must have the voxel size of the input",
        ),
        (
            lambda d: d["inputs"][0]["axes"][2].update(unit="parsec"),
            "inputs.0.axes.2.unit is 'parsec'; it must be one of",
        ),
    ],
)
def test_descriptions_of_format_0_5_that_cannot_be_run(tmp_path, change, message):
    """Each is one sentence that names the field and its value."""
    folder = write_package(tmp_path / "net", describe("0.5.0"))
    path = changed(folder, change)
    with pytest.raises(ModelError, match=f"model package .*net: {message}"):
        read_package(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda i, o: i.update(axes="btczyx"),
            "inputs.0.axes is 'btczyx'; axes must contain",
        ),
        (lambda i, o: i["shape"]["step"].__setitem__(1, 1), "number of channels must be fixed"),
        (lambda i, o: i["shape"]["min"].pop(), "inputs.0.shape.min.4 is missing; .* an integer"),
        (
            lambda i, o: o["shape"].update(reference_tensor="other"),
            "outputs.0.shape.reference_tensor is 'other'; it must be the name of the input, 'raw'",
        ),
        (
            lambda i, o: o["shape"]["scale"].__setitem__(2, 2.0),
            "outputs.0.shape.scale is .* the voxel size of the input",
        ),
        (
            lambda i, o: o.update(shape=[1, 2, 8, 8, 8]),
            "outputs.0 is .*along z the size of the",
        ),
        (lambda i, o: o.update(data_type="uint8"), "last step is uint8, but blended values"),
    ],
)
def test_descriptions_of_format_0_4_that_cannot_be_run(tmp_path, change, message):
    """Each is one sentence that names the field and its value."""
    folder = write_package(tmp_path / "net", describe("0.4.9"))
    path = changed(folder, lambda d: change(d["inputs"][0], d["outputs"][0]))
    with pytest.raises(ModelError, match=message):
        read_package(path)


def test_fixed_sizes_of_format_0_4(tmp_path):
    """An output of fixed size says what the network cuts off."""
    inputs = [input_0_4(shape=[1, 1, 8, 10, 12])]
    outputs = [output_0_4(shape=[1, 2, 6, 8, 10])]
    folder = write_package(tmp_path / "net", describe("0.4.10", inputs, outputs), padding=0)
    package = read_package(str(folder))
    assert (package.margin, package.patch_step) == ((1, 1, 1), (0, 0, 0))
    assert package.patch_size == (8, 10, 12)


def test_a_network_that_is_not_as_described(tmp_path):
    """Another number of outputs or of axes than described is said, not guessed."""
    outputs = [output_0_5(), output_0_5(id="more")]
    folder = write_package(tmp_path / "two", describe("0.5.0", outputs=outputs))
    with pytest.raises(ModelError, match=r"returned 1 tensors, .* describes 2 outputs \(map, more"):
        run(read_package(str(folder)), noise(1, 1, 4, 4, 4))
    folder = write_package(tmp_path / "axes", describe("0.5.0", outputs=[output_0_5("czyx")]))
    with pytest.raises(ModelError, match=r"map with shape \(1, 2, 4, 4, 4\), .* axes czyx"):
        run(read_package(str(folder)), noise(1, 1, 4, 4, 4))
