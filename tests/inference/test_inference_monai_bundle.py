"""MONAI bundles: what is read from them, what is refused, and that nothing in them is run."""

import copy
import json
import zipfile
from fractions import Fraction

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rigs.monai_bundles import (
    config,
    convolution,
    metadata,
    sliding_window,
    voxels,
    write_bundle,
    write_nifti,
    zipped,
)

from chunkflow_py.cli.main import main
from chunkflow_py.core.geometry import BoundingBox, Scale, Zyx
from chunkflow_py.errors import ChunkflowError, ModelError, OptionError
from chunkflow_py.inference.backend_factory import create_backend
from chunkflow_py.inference.monai_bundle import is_bundle, read_bundle, with_bundle
from chunkflow_py.inference.monai_bundle.bundle_orientation import network_axes
from chunkflow_py.inference.monai_bundle.bundle_spacing import BundleSpacing
from chunkflow_py.inference.network_source import NetworkSource, network_files
from chunkflow_py.volume import open_volume

SIZE = (12, 14, 16)
LOAD = {"_target_": "LoadImaged", "keys": "image"}
SOFTMAX = {"_target_": "Activationsd", "keys": "pred", "softmax": True}
ARGMAX = {"_target_": "AsDiscreted", "keys": "pred", "argmax": True}
RANGE = {
    "_target_": "ScaleIntensityRanged", "keys": "image", "a_min": 0, "a_max": 255, "b_min": 0.0,
    "b_max": 1.0,
}  # fmt: skip
OPTIONS = {
    "convnet_weight_path": None, "input_patch_size": None, "model_voxel_size_nm": None,
    "image_orientation": None, "skip_transforms": None, "activation": "none", "activate": "before",
    "bump": "wu", "resample": None,
}  # fmt: skip


def bundle(folder, *, weights=("model.pt",), meta=None, network=None, kernel=3, **more):
    """Write a bundle of a convolution and return its path."""
    definition, made = convolution(kernel=kernel)
    inference = config(network or definition, **more)
    return str(write_bundle(folder / "bundle", inference, made, weights=weights, meta=meta))


def completed(path, chosen=(), **options):
    """Return the options that a bundle completes."""
    return with_bundle(OPTIONS | {"convnet_model": path} | options, chosen)


def refusal(path, **options):
    """Return the message with which a bundle is refused, one sentence."""
    with pytest.raises(ModelError) as caught:
        completed(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_folder_and_its_archive_are_bundles(tmp_path):
    """Configs at the top level, or in one folder of the archive; other archives are none."""
    path = tmp_path / "bundle"
    bundle(tmp_path)
    assert is_bundle(str(path))
    assert is_bundle(str(zipped(path)))
    assert is_bundle(str(zipped(path, "spleen/")))
    assert not is_bundle(str(zipped(path, "a/b/")))
    (tmp_path / "damaged.zip").write_bytes(b"PK\x03\x04")
    with zipfile.ZipFile(tmp_path / "rdf.zip", "w") as archive:
        archive.writestr("rdf.yaml", "")
    for name in ("damaged.zip", "rdf.zip", "missing.zip", "models"):
        assert not is_bundle(str(tmp_path / name))


def test_options_come_from_the_config(tmp_path):
    """Patch, overlap, batch, window, padding, activation, voxel size: in zyx, by MONAI's rules."""
    path = bundle(
        tmp_path,
        before=[{"_target_": "Spacingd", "keys": "image", "pixdim": [0.5, 1, 2]}],
        after=[SOFTMAX, {"_target_": "AsDiscreted", "keys": "pred", "argmax": True}],
        inferer=sliding_window([8, 10, 13], overlap=[0.5, 0.25, 0.3], padding_mode="replicate"),
    )
    found = completed(path)
    assert found["input_patch_size"] == Zyx(13, 10, 8)
    # The strides are int(13 · 0.7), int(10 · 0.75) and int(8 · 0.5).
    assert found["output_patch_overlap"] == Zyx(13 - 9, 10 - 7, 8 - 4)
    assert (found["batch_size"], found["bump"], found["pad"]) == (2, "gaussian-monai", "edge")
    assert (found["activation"], found["activate"]) == ("softmax", "after")
    assert found["output_dtype"] == "argmax"
    assert found["model_voxel_size_nm"] == (2e6, 1e6, 5e5)
    assert (found["num_input_channels"], found["num_output_channels"]) == (1, 2)


def test_what_the_user_chose_stays(tmp_path):
    """Options of the user go first; the overlap is the same fraction of the user's patch."""
    path = bundle(tmp_path, after=[SOFTMAX])
    chosen = {"input_patch_size": Zyx(4, 6, 9), "bump": "wu", "activation": "sigmoid"}
    found = completed(path, chosen, **chosen)
    assert {name: found[name] for name in chosen} == chosen
    assert found["activate"] == "before"
    assert found["output_patch_overlap"] == Zyx(2, 3, 5)


def test_references_and_dtypes_are_followed(tmp_path):
    """A value may stand elsewhere in the config or in the metadata; a dtype may look like code."""
    path = bundle(
        tmp_path,
        before=[
            {"_target_": "CastToTyped", "keys": "@image_key", "dtype": "$torch.float32"},
            RANGE | {"a_max": "@most#0", "_disabled_": False},
            {"_target_": "Resized", "keys": "image", "_disabled_": True},
        ],
        inferer=sliding_window("@patch"),
        patch=[6, "@sizes::1", 8],
        sizes=[0, "@_meta_::patch"],
        most=[100.0],
        meta=metadata() | {"patch": 7},
    )
    assert completed(path)["input_patch_size"] == Zyx(8, 7, 6)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"inferer": sliding_window("$@patch")}, "inferer::roi_size is '$@patch'"),
        ({"before": [RANGE | {"a_min": "$-1"}]}, "a_min is '$-1', an expression"),
        ({"before": [RANGE | {"a_min": "%other.json::a"}]}, "a macro"),
        ({"preprocessing": {"_target_": "Compose", "transforms": "$@a + @b"}}, "$@a + @b"),
        ({"inferer": sliding_window("@nowhere")}, "is '@nowhere'; the config has no such value"),
        ({"inferer": sliding_window("@a"), "a": "@b", "b": "@a"}, "lead in a circle"),
    ],
)  # fmt: skip
def test_expressions_are_never_evaluated(tmp_path, change, named):
    """A value that is needed must be written there; the message names key and expression."""
    assert named in refusal(bundle(tmp_path, **change))


@pytest.mark.parametrize("place", ["network_def", "preprocessing"])
def test_references_do_not_multiply_without_end(tmp_path, place):
    """A few lines whose references repeat each other stand for more values than are read."""
    more = {f"a{i}": [f"@a{i + 1}"] * 50 for i in range(7)} | {"a7": []}
    if place == "preprocessing":
        path = bundle(tmp_path, **more, preprocessing="@a0")
    else:
        definition = {"_target_": "torch.nn.Conv3d", "in_channels": 1, "padding": "@a0"}
        path = bundle(tmp_path, network=definition, **more)
    assert "more than 100000 values" in refusal(path)


def test_expressions_that_nothing_needs_are_ignored(tmp_path):
    """Devices, folders and data loaders are code in every published bundle; they are not run."""
    mark = tmp_path / "run"
    code = f"$open({str(mark)!r}, 'w')"
    path = bundle(tmp_path, device=code, dataset={"_target_": code}, initialize=[code])
    network = NetworkSource(path).load(None, torch.device("cpu"))
    assert network(torch.zeros(1, 1, 4, 5, 6)).shape == (1, 2, 4, 5, 6)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("transform", "alternative"),
    [
        ("CropForegroundd", "generate-tasks --roi-start"),
        ("Resized", "resample the volume"),
        ("SpatialPadd", "--pad"),
        ("RandFlipd", "for training"),
        ("Lambdad", "operator of the pipeline"),
        ("HistogramNormalized", "operator of the pipeline"),
    ],
)
def test_transforms_of_whole_images_are_refused_by_name(tmp_path, transform, alternative):
    """The message names the transform and the alternative; the user may leave it out."""
    path = bundle(tmp_path, before=[{"_target_": transform, "keys": "image"}, RANGE])
    message = refusal(path)
    assert transform in message
    assert alternative in message
    assert f"--skip-transforms {transform}" in message
    assert len(completed(path, skip_transforms=(transform,))["package"].normalization.steps) == 1


@pytest.mark.parametrize(
    ("transform", "alternative"),
    [
        ({"_target_": "AsDiscreted", "threshold": 0.5}, "threshold --threshold 0.5"),
        ({"_target_": "KeepLargestConnectedComponentd"}, "connected-components"),
        ({"_target_": "FillHolesd"}, "fill-segmentation-holes"),
        ({"_target_": "VoteEnsembled"}, "operator of the pipeline"),
    ],
)
def test_results_that_need_the_volume_are_refused_by_name(tmp_path, transform, alternative):
    """The operator that does it is named."""
    message = refusal(bundle(tmp_path, after=[transform | {"keys": "pred"}]))
    assert transform["_target_"] in message
    assert alternative in message


def test_an_unknown_name_to_skip_is_refused(tmp_path):
    """A misspelt transform would silently stay; the names that exist are listed."""
    path = bundle(tmp_path, before=[RANGE])
    with pytest.raises(OptionError, match="are LoadImaged, EnsureChannelFirstd"):
        completed(path, skip_transforms=("ScaleIntensity",))


@pytest.mark.parametrize(
    "transform",
    [
        {"_target_": "NormalizeIntensityd", "keys": "image"},
        {"_target_": "ScaleIntensityd", "keys": "image"},
        {
            "_target_": "ScaleIntensityRangePercentilesd", "keys": "image", "lower": 1,
            "upper": 99, "b_min": 0, "b_max": 1,
        },
    ],
)  # fmt: skip
def test_statistics_of_an_image_come_from_a_file(tmp_path, transform):
    """Without the file, the message says how to compute it; after other steps, it is refused."""
    normalization = completed(bundle(tmp_path, before=[transform]))["package"].normalization
    with pytest.raises(OptionError, match="compute-statistics"):
        normalization.normalizer(1)
    file = tmp_path / "statistics.json"
    channel = {"mean": 10.0, "std": 4.0, "percentiles": {"0": 2, "1": 2, "99": 12, "100": 12}}
    file.write_text(json.dumps({"version": 1, "channels": [channel]}))
    out = np.empty((1, 1, 1, 2), np.float32)
    normalization.normalizer(1, str(file))(np.array([[[[2, 12]]]], np.uint8), out)
    expected = [-2, 0.5] if "Normalize" in transform["_target_"] else [0, 1]
    np.testing.assert_allclose(out[0, 0, 0], expected)
    message = refusal(bundle(tmp_path / "second", before=[RANGE, transform]))
    assert "after other transforms" in message


def test_an_orientation_must_be_known(tmp_path):
    """A wrong orientation gives wrong results silently, so it is no default."""
    turned = {"_target_": "Orientationd", "keys": "image", "axcodes": "RAS"}
    path = bundle(tmp_path, before=[turned])
    with pytest.raises(OptionError, match="--image-orientation RAS"):
        completed(path)
    assert completed(path, image_orientation="LPS")["orientations"] == ("RAS", "LPS")
    for wrong in ("LRS", "RA", "ras"):
        with pytest.raises(OptionError, match=f"--image-orientation {wrong}"):
            completed(path, image_orientation=wrong)
    with pytest.raises(OptionError, match="has no transform Orientation"):
        completed(bundle(tmp_path / "second"), image_orientation="RAS")


@pytest.mark.parametrize(
    ("image", "sources", "flipped"),
    [
        ("RAS", (2, 1, 0), (False, False, False)),
        ("LPS", (2, 1, 0), (True, True, False)),
        ("SAR", (0, 1, 2), (False, False, False)),
        ("PIR", (0, 2, 1), (False, True, True)),
    ],
)
def test_axes_of_a_network(image, sources, flipped):
    """Each axis of the network finds its axis of the patch, and its direction."""
    assert network_axes("RAS", image) == (sources, flipped)


@pytest.mark.parametrize("image", ["LPS", "PIR", "SLA"])
def test_a_turned_network_is_the_network_on_a_turned_patch(tmp_path, image):
    """Axes are reordered and flipped before the network, and back after it."""
    nibabel = pytest.importorskip("nibabel")
    path = bundle(tmp_path)
    network = read_bundle(path).load(orientations=("RAS", image))
    patch = np.random.default_rng(0).random((5, 6, 7), np.float32)  # z, y, x
    there = nibabel.orientations.ornt_transform(
        nibabel.orientations.axcodes2ornt(image), nibabel.orientations.axcodes2ornt("RAS")
    )
    back = nibabel.orientations.ornt_transform(
        nibabel.orientations.axcodes2ornt("RAS"), nibabel.orientations.axcodes2ornt(image)
    )
    turned = nibabel.orientations.apply_orientation(patch.T, there)
    with torch.no_grad():
        inside = convolution()[1](torch.from_numpy(np.ascontiguousarray(turned))[None, None])[0]
        found = network(torch.from_numpy(patch)[None, None])[0].numpy()
    expected = [nibabel.orientations.apply_orientation(each, back).T for each in inside.numpy()]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_state_dict_goes_first_unless_it_needs_code(tmp_path):
    """A state dict is data, TorchScript a program; the choice depends on the bundle alone."""
    both = ("model.pt", "model.ts")
    path = bundle(tmp_path / "a", weights=both)
    assert not read_bundle(path).is_program
    assert read_bundle(bundle(tmp_path / "b", weights=("model.ts",))).is_program
    own = {"_target_": "scripts.networks.Net", "in_channels": 1}
    path = bundle(tmp_path / "c", network=own, weights=both)
    assert read_bundle(path).is_program
    computed = {"_target_": "torch.nn.Conv3d", "in_channels": "$1 + 0"}
    assert read_bundle(bundle(tmp_path / "d", network=computed, weights=both)).is_program
    message = refusal(bundle(tmp_path / "e", network=own))
    assert "scripts.networks.Net" in message
    assert "models/model.ts" in message


def test_only_torchscript_is_code(tmp_path):
    """With --no-code, workers run bundles whose network is made from its definition."""
    bundle(tmp_path / "a")
    bundle(tmp_path / "b", weights=("model.ts",))
    data, code = (str(zipped(tmp_path / name / "bundle")) for name in "ab")
    assert network_files({"model": data}) == {data: "data"}
    assert network_files({"model": data, "trust_weights": True}) == {data: "code"}
    assert network_files({"model": code}) == {code: "code"}
    with pytest.raises(OptionError, match=r"pack all files of the folder into a \.zip"):
        network_files({"model": str(tmp_path / "a" / "bundle")})


def test_a_network_of_monai_needs_monai(tmp_path):
    """The message names the extra, and the way without it."""
    definition = {"_target_": "UNet", "in_channels": 1, "out_channels": 2}
    path = bundle(tmp_path, network=definition, weights=("model.pt", "model.ts"))
    try:
        import monai  # noqa: F401
    except ImportError:
        with pytest.raises(ChunkflowError, match=r"chunkflow_py\[monai\]"):
            read_bundle(path).load()
    else:
        with pytest.raises(ModelError, match="does not accept these arguments"):
            read_bundle(path).load()


@pytest.mark.parametrize(
    ("definition", "named"),
    [
        ({"_target_": "torch.nn.Conv3d", "in_channels": 1}, "does not accept these arguments"),
        ({"_target_": "torch.nn.Nothing"}, "no network of this name"),
        ({"_target_": "torch.nn.functional.conv3d"}, "only networks of"),
        ({"_target_": "os.system", "command": "true"}, "only networks of"),
        ({"_target_": "torch.nn.init"}, "no network of this name"),
        ({"_target_": "HoVerNet", "pretrained_url": "https://example.com"}, "that can be made"),
        ({"_target_": "FlexibleUNet", "pretrained": True}, "weights come from the bundle"),
        (
            {
                "_target_": "torch.nn.Conv3d", "in_channels": 1, "out_channels": 2,
                "kernel_size": 2001,
            },
            "belong to another network",
        ),
    ],
)  # fmt: skip
def test_networks_that_cannot_be_made(tmp_path, definition, named):
    """One sentence names definition and reason; no memory is allocated for a huge network."""
    path = bundle(tmp_path, network=definition)
    with pytest.raises(ModelError, match=named) as caught:
        read_bundle(path).load()
    assert "\n" not in str(caught.value)


def test_code_in_the_weights_is_not_run(tmp_path):
    """The state dict of a bundle is read like any weight file."""
    path = bundle(tmp_path)
    torch.save(torch.nn.Conv3d(1, 2, 3), tmp_path / "bundle/models/model.pt")
    with pytest.raises(ModelError, match="contains more than weights"):
        read_bundle(path).load()


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("configs/inference.json", "contains no configs/inference.json"),
        ("configs/metadata.json", "contains no configs/metadata.json"),
        ("models/model.pt", "contains neither models/model.pt nor models/model.ts"),
    ],
)
def test_missing_files_are_named(tmp_path, missing, named):
    """A bundle without an inference config, metadata or weights is refused by the file's name."""
    path = bundle(tmp_path)
    (tmp_path / "bundle" / missing).unlink()
    assert named in refusal(path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"inferer": {"_target_": "SliceInferer"}}, "supported inferers"),
        ({"inferer": sliding_window([96, 96])}, "only networks of 3D images"),
        ({"inferer": sliding_window([-1, 8, 8])}, "each size must be"),
        ({"inferer": sliding_window(overlap=1.0)}, "below 1"),
        ({"inferer": sliding_window(sigma_scale=0.25)}, "0.125"),
        ({"inferer": sliding_window(padding_mode="circular")}, "constant, reflect, replicate"),
        ({"inferer": sliding_window(cval=-1)}, "cval is -1"),
        ({"inferer": sliding_window(mode="bell")}, "constant or gaussian"),
        ({"postprocessing": None}, "postprocessing is missing"),
        ({"before": [RANGE | {"a_max": 0}]}, "must differ from a_min"),
        ({"before": [RANGE | {"dtype": "uint8"}]}, "change it to float32"),
        (
            {
                "before": [
                    {
                        "_target_": "Orientationd",
                        "keys": "image",
                        "axcodes": "RAS",
                        "labels": [["R", "L"], ["P", "A"], ["I", "S"]],
                    }
                ]
            },
            "usual names of directions",
        ),
        ({"after": [SOFTMAX, SOFTMAX]}, "only one activation"),
        ({"after": [SOFTMAX | {"sigmoid": True}]}, "only one of them"),
    ],
)
def test_values_that_cannot_be_followed(tmp_path, change, named):
    """The message names the key and its value."""
    assert named in refusal(bundle(tmp_path, **change))


def test_channels_of_metadata_and_network_must_agree(tmp_path):
    """Both numbers are named."""
    message = refusal(bundle(tmp_path, meta=metadata(outputs=3)))
    assert "num_channels is 3; out_channels of the network is 2" in message


def run(*arguments):
    """Run inference on em.h5; return the exit code, and the result if there is one."""
    with pytest.raises(SystemExit) as stop:
        main(
            ["load-h5", "-f", "em.h5", "inference", *map(str, arguments), "--device", "cpu"]
            + ["save-h5", "-f", "out.h5"]
        )
    if stop.value.code:
        return stop.value.code, None
    with h5py.File("out.h5") as file:
        return 0, file["main"][:]


@pytest.fixture
def image(tmp_path, monkeypatch):
    """Work in a folder with an image em.h5, and return its voxels."""
    monkeypatch.chdir(tmp_path)
    voxels = np.random.default_rng(0).integers(1, 256, SIZE, dtype=np.uint8)
    with h5py.File("em.h5", "w") as file:
        file["main"] = voxels
    return voxels


@pytest.mark.parametrize("weights", ["model.pt", "model.ts"])
def test_a_bundle_alone_is_enough(image, tmp_path, weights):
    """Its path is the only option; the result is that of the network on all voxels."""
    # A convolution of one voxel gives the same in every patch.
    path = bundle(tmp_path, weights=(weights,), before=[RANGE], after=[SOFTMAX], kernel=1)
    for model in (path, zipped(tmp_path / "bundle", "bundle/")):
        code, found = run("-m", model)
        assert code == 0
        with torch.no_grad():
            scaled = torch.from_numpy(image.T.astype(np.float32) / 255)[None, None]
            expected = convolution(kernel=1)[1](scaled).softmax(1)[0].numpy()
        np.testing.assert_allclose(found, expected.transpose(0, 3, 2, 1), atol=1e-6)


def test_options_for_bundles_need_a_bundle(image, capsys):
    """With another network they would have no effect."""
    assert run("-m", "rsunet", "-s", 4, 8, 8, "--image-orientation", "RAS")[0] == 2
    assert "--image-orientation is only for MONAI bundles" in " ".join(
        capsys.readouterr().err.split()
    )


def test_other_networks_still_need_a_patch_size(image, capsys):
    """Only a bundle states the patch size."""
    assert run("-m", "rsunet")[0] == 2
    assert "--input-patch-size" in capsys.readouterr().err


def test_a_bundle_brings_its_weights(image, tmp_path, capsys):
    """A weight file beside a bundle is a contradiction."""
    (tmp_path / "w.pt").write_bytes(b"")
    assert run("-m", bundle(tmp_path), "-w", "w.pt")[0] == 2
    assert "contains its weights" in " ".join(capsys.readouterr().err.split())


def test_a_wrong_output_is_one_sentence(tmp_path):
    """A network that does not return one tensor (n, c, x, y, z) is refused."""
    inference = config(convolution()[0])
    folder = write_bundle(tmp_path / "b", inference, torch.nn.Flatten(3), weights=("model.ts",))
    network = read_bundle(str(folder)).load()
    with pytest.raises(ModelError, match=r"returned a Tensor of 4 axes"):
        network(torch.zeros(1, 1, 4, 4, 4))


def test_digests_differ_by_weights_and_orientation(tmp_path):
    """Converted networks are cached by them."""
    path = bundle(tmp_path)
    digests = set()
    for orientations in (None, ("RAS", "LPS")):
        source = NetworkSource(path, orientations=orientations)
        digests.add(source.digest(source.load(None, torch.device("cpu"))))
    assert len(digests) == 2


def test_a_bundle_can_be_converted(tmp_path):
    """A network made from its definition is exported like any other."""
    pytest.importorskip("openvino")
    path = bundle(tmp_path)
    batch = np.random.default_rng(0).random((1, 1, 8, 9, 10), np.float32)
    found = [
        create_backend(
            "pytorch", input_patch_size=(8, 9, 10), output_patch_size=(8, 9, 10), model=path,
            num_output_channels=2, device="cpu", backend=backend,
        )(torch.from_numpy(batch))
        for backend in ("torch", "openvino")
    ]  # fmt: skip
    np.testing.assert_allclose(*map(np.asarray, found), atol=1e-5)


CODES = ("RAS", "LPS", "PIR", "SLA")


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    patch=st.tuples(*[st.integers(4, 9)] * 3),
    overlap=st.tuples(*[st.sampled_from([0, 0.25, 0.5, 0.6])] * 3),
    task=st.tuples(*[st.integers(6, 11)] * 3),
    code=st.sampled_from(CODES),
    mode=st.sampled_from(["gaussian", "constant"]),
    batch=st.integers(1, 3),
)
def test_tasks_equal_the_whole(tmp_path_factory, patch, overlap, task, code, mode, batch):
    """Whatever patch, orientation and division into tasks: the bytes are those of one task."""
    pytest.importorskip("zarr")
    folder = tmp_path_factory.mktemp("tasks")
    with h5py.File(folder / "em.h5", "w") as file:
        file["main"] = np.random.default_rng(1).integers(0, 256, SIZE, dtype=np.uint8)
    path = bundle(
        folder,
        before=[{"_target_": "Orientationd", "keys": "image", "axcodes": "RAS"}, RANGE],
        after=[SOFTMAX],
        inferer=sliding_window(patch, overlap=list(overlap), mode=mode, sw_batch_size=batch),
    )
    found = []
    for size in (SIZE, task):
        store = folder / f"{len(found)}.zarr"
        command = [
            "generate-tasks", "--roi-size", *SIZE, "--chunk-size", *size, "--respect-stop",
            "load-h5", "--file-name", folder / "em.h5", "--expand-margin-size", "auto",
            "inference", "--convnet-model", path, "--image-orientation", code, "--device", "cpu",
            "save-zarr", "--store", store, "--chunk-size", *size,
        ]  # fmt: skip
        with pytest.raises(SystemExit) as stop:
            main(list(map(str, command)))
        assert not stop.value.code
        volume = open_volume(str(store))
        found.append(volume.read(volume.bounds).array)
    assert found[0].std() > 0
    assert found[0].tobytes() == found[1].tobytes()


def test_a_bundle_of_another_voxel_size_needs_resampling(tmp_path, capsys):
    """Without --resample the sizes are named; with it, tasks equal the whole."""
    nibabel = pytest.importorskip("nibabel")
    assert nibabel
    image = write_nifti(tmp_path / "image.nii", voxels(SIZE), spacing=(1.0, 1.0, 2.0))
    spacing = {"_target_": "Spacingd", "keys": "image", "pixdim": [2.0, 2.0, 4.0]}
    inferer = sliding_window([4, 5, 6])
    path = bundle(tmp_path, before=[spacing], after=[SOFTMAX], inferer=inferer)
    found = []
    for size, options in ((SIZE[::-1], []), (SIZE[::-1], ["linear"]), ((8, 7, 6), ["linear"])):
        store = tmp_path / f"{'-'.join(map(str, size))}.zarr"
        resample = ["--resample", *options] if options else []
        command = [
            "generate-tasks", "--volume-path", image, "--chunk-size", *size,
            "load-volume", "--volume-path", image, "--expand-margin-size", "auto",
            "inference", "--convnet-model", path, "--device", "cpu", *resample,
            "save-zarr", "--store", store, "--chunk-size", *size,
        ]  # fmt: skip
        with pytest.raises(SystemExit) as stop:
            main(list(map(str, command)))
        assert bool(stop.value.code) != bool(options)
        if options:
            volume = open_volume(str(store))
            found.append(volume.read(volume.bounds).array)
    assert "trained on voxels of 4e+06 2e+06 2e+06 nm" in capsys.readouterr().err
    assert found[0].shape == (2, *SIZE[::-1])
    assert found[0].std() > 0
    assert found[0].tobytes() == found[1].tobytes()


SPACING = {"_target_": "Spacingd", "keys": "image", "pixdim": [2.0, 2.0, 4.0]}
INVERT = {"_target_": "Invertd", "keys": "pred", "nearest_interp": False}


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ([SPACING | {"mode": 3}], [], "mode is 3; --resample supports only bilinear and nearest"),
        ([SPACING | {"mode": ["nearest", "area"]}], [], "supports only bilinear and nearest"),
        ([SPACING | {"padding_mode": "zeros"}], [], "padding_mode is 'zeros'; --resample does not"),
        ([SPACING | {"diagonal": True}], [], "diagonal is True; --resample does not support"),
        ([SPACING | {"min_pixdim": 1.0}], [], "min_pixdim is 1.0; --resample does not support"),
        ([RANGE, SPACING, RANGE], [], "either before or after all transforms"),
        ([SPACING], [ARGMAX, INVERT], "it would interpolate the labels of AsDiscrete"),
    ],
)
def test_a_spacing_that_cannot_be_done_is_refused(tmp_path, before, after, problem):
    """Only --resample needs the options of Spacing and the order of the transforms."""
    path = bundle(tmp_path, before=before, after=after)
    completed(path)
    assert problem in refusal(path, resample="linear")


def test_the_method_of_the_image_is_used(tmp_path):
    """Options of Spacing may be lists, with an item for the image and one for the labels."""
    both = SPACING | {"keys": ["label", "image"], "mode": ["nearest", "bilinear"]}
    rule = completed(bundle(tmp_path, before=[both]), resample="linear")["resampling"]
    assert (rule.method, rule.output_method) == ("hat", "hat")
    nearest = completed(
        bundle(
            tmp_path / "nearest", before=[SPACING], after=[{"_target_": "Invertd", "keys": "pred"}]
        ),
        resample="linear",
    )
    assert nearest["resampling"].output_method == "nearest"


def test_a_voxel_size_of_the_user_is_not_that_of_the_bundle(tmp_path):
    """MONAI's rule belongs to MONAI's voxel size and to linear interpolation."""
    path = bundle(tmp_path, before=[SPACING])
    for options in (
        {"resample": "cubic"},
        {"resample": "linear", "model_voxel_size_nm": (1, 1, 1)},
    ):
        assert "resampling" not in completed(path, **options)


def test_voxels_that_hardly_differ_are_not_resampled():
    """MONAI keeps a voxel size up to 1e-3 mm, and an image up to a ratio of 1e-3."""
    box = BoundingBox.from_size((5, 6, 7), (40, 50, 60))
    sizes = (1.0009e9, 1e9 + 999, 1e9)
    grid = BundleSpacing((1e9, 1e9, None))(box, sizes)
    assert grid.resampling.scale == Scale(1, 1, 1)
    assert grid.resampling.origin == (0, 0, 0)
    assert grid.domain == box


@given(data=st.data())
def test_centres_of_corners_coincide(data):
    """Whatever the box and the ratio, and the number of voxels is that of MONAI."""
    start = [data.draw(st.integers(-50, 50)) for _ in range(3)]
    size = [data.draw(st.integers(1, 60)) for _ in range(3)]
    ratios = [data.draw(st.sampled_from((0.3, 0.7, 1.0, 1.25, 1.9, 3.1))) for _ in range(3)]
    flipped = data.draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    box = BoundingBox.from_size(start, size)
    want = tuple(round(ratio * 1e7) for ratio in ratios)
    grid = BundleSpacing(want, flipped)(box, (1e7, 1e7, 1e7))
    for axis in range(3):
        scale, origin = grid.resampling.scale[axis], grid.resampling.origin[axis]
        assert float(scale) == pytest.approx(ratios[axis], abs=1e-9)
        corner, own = grid.domain.start[axis], start[axis]
        if flipped[axis]:
            corner, own = grid.domain.stop[axis] - 1, box.stop[axis] - 1
        assert origin + (corner + Fraction(1, 2)) * scale == own + Fraction(1, 2)
        assert grid.domain.size[axis] == np.round((size[axis] - 1) / float(scale) + 1)


def test_a_config_may_be_yaml(tmp_path):
    """The config is the same; aliases, which could stand for terabytes, are refused."""
    yaml = pytest.importorskip("yaml")
    path = bundle(tmp_path)
    file = tmp_path / "bundle/configs/inference.json"
    document = json.loads(file.read_text())
    file.unlink()
    file = file.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(document))
    assert completed(path)["input_patch_size"] == Zyx(12, 10, 8)
    file.write_text("a: &a [1, 1]\nb: [*a, *a]")
    assert "not valid YAML: aliases" in refusal(path)
    file.write_text("a: [")
    assert "not valid YAML" in refusal(path)
    file.write_text("[1]")
    assert "contains a list, not an object" in refusal(path)


def test_a_config_of_any_length_is_not_read(tmp_path):
    """A few kilobytes of an archive can unpack to gigabytes; reading stops."""
    bundle(tmp_path)
    file = tmp_path / "bundle/configs/inference.json"
    file.write_bytes(b" " * (64 << 20))
    assert "is larger than the limit of 4194304 bytes" in refusal(str(zipped(tmp_path / "bundle")))


def test_names_in_an_archive_do_not_lead_out_of_it(tmp_path):
    """Only the files of a bundle are unpacked, one by one, under names of our own."""
    bundle(tmp_path)
    path = zipped(tmp_path / "bundle")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../outside", "x")
    local = read_bundle(str(path))._files.local("models/model.pt")
    assert local.read_bytes() == (tmp_path / "bundle/models/model.pt").read_bytes()
    assert list(local.parent.iterdir()) == [local]
    assert not (local.parent.parent / "outside").exists()


# --- damage ---------------------------------------------------------------------------------------

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**30), st.floats(), st.text(max_size=5),
    st.sampled_from(["$1", "@patch", "@_meta_", "@x::0", "%f", "NaN", "@inferer::roi_size"]),
    st.lists(st.integers(-1, 3), max_size=4), st.dictionaries(st.text(max_size=3), st.none()),
    st.just({"_target_": "Compose", "transforms": "@preprocessing"}),
)  # fmt: skip


def places(value, path=()):
    """Yield the path of each value inside a document."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inside in items:
            yield from places(inside, (*path, key))


def replaced(document, path, value):
    """Return a copy of a document with another value at a path."""
    if not path:
        return value
    document = copy.deepcopy(document)
    here = document
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    return document


def outcome(path):
    """Return the message with which a bundle is refused, or an empty string if it is not."""
    try:
        completed(str(path), resample="linear")
        read_bundle(str(path)).load()
    except ChunkflowError as error:
        return str(error)
    return ""


DAMAGED = config(
    convolution()[0],
    before=[
        {"_target_": "Spacingd", "keys": "image", "pixdim": [1, 1, 2]},
        {"_target_": "ScaleIntensityRangePercentilesd", "keys": "image", "lower": 1, "upper": 99,
         "b_min": 0, "b_max": 1, "clip": True},
        {"_target_": "ThresholdIntensityd", "keys": "image", "threshold": 0.5, "above": False},
        {"_target_": "NormalizeIntensityd", "keys": "image", "subtrahend": [1.0], "divisor": 2},
    ],
    after=[SOFTMAX, {"_target_": "AsDiscreted", "keys": "pred", "argmax": True}],
    patch=[4, 5, 6],
)  # fmt: skip


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_configs_are_refused_in_one_sentence(tmp_path_factory, data):
    """Whatever stands in a config, the answer is options or one error of this package."""
    base = tmp_path_factory.getbasetemp() / "damaged"
    folder = base if base.is_dir() else write_bundle(base, DAMAGED, convolution()[1])
    is_meta = data.draw(st.booleans())
    name, document = ("metadata", metadata()) if is_meta else ("inference", DAMAGED)
    spots = [p for p in places(document) if name == "inference" or not p or len(p) > 1]
    document = replaced(document, data.draw(st.sampled_from(spots)), data.draw(JUNK))
    (folder / "configs/inference.json").write_text(json.dumps(DAMAGED))
    (folder / "configs/metadata.json").write_text(json.dumps(metadata()))
    (folder / f"configs/{name}.json").write_text(json.dumps(document))
    message = outcome(folder)
    assert "\n" not in message
    assert len(message) < 1500


@given(st.binary(max_size=300))
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_archives_are_refused_in_one_sentence(tmp_path_factory, noise):
    """Bytes that change inside an archive lead to one error of this package, or to no bundle."""
    base = tmp_path_factory.getbasetemp() / "archive"
    if not base.is_dir():
        zipped(write_bundle(base, DAMAGED, convolution()[1]))
    content = bytearray(base.with_suffix(".zip").read_bytes())
    for i in range(0, len(noise) - 2, 3):
        content[int.from_bytes(noise[i : i + 2], "little") % len(content)] = noise[i + 2]
    file = base.with_name("changed.zip")
    file.write_bytes(content)
    if is_bundle(str(file)):
        assert "\n" not in outcome(file)
