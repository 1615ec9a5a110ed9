"""Models of nnU-Net v2: the outputs of nnU-Net itself, from data only, for any tasks.

The outputs of nnU-Net are stored in tests/data/nnunet; tests/rigs/nnunet_oracle.py made them.
`make test-models` computes them again with the original package, and repeats these tests.
"""

import json
import os
import pickle
import shutil
import subprocess
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from click.testing import CliRunner

pytest.importorskip("dynamic_network_architectures", reason="needs the extra nnunet")

from nnunet_models import CASES, CROPPED, MASKED, RESAMPLED, STORED, image_of, write_folder
from rigs.build import RIGS
from scipy.ndimage import binary_fill_holes

from chunkflow_py.cli.main import cli, main
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.inference.backend_factory import create_backend
from chunkflow_py.inference.blend import create_window
from chunkflow_py.inference.network_source import network_code, network_files
from chunkflow_py.inference.nnunet import read_model, write_model
from chunkflow_py.inference.nnunet.plans import read_plan
from chunkflow_py.inference.normalization import statistics_of
from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid
from chunkflow_py.volume import open_volume

NANOMETRES = 1e6  # per millimetre, the unit of the plans
ORACLE = RIGS / "nnunet" / "bin" / "python"


@pytest.fixture(scope="session", params=["stored", pytest.param("again", marks=pytest.mark.models)])
def outputs(request, tmp_path_factory):
    """Return a function (case) -> logits and labels of nnU-Net, stored or computed again."""
    folder = STORED
    if request.param == "again":
        folder = tmp_path_factory.mktemp("oracle")
        script = Path(__file__).parents[1] / "rigs" / "nnunet_oracle.py"
        subprocess.run([ORACLE, script, folder], check=True)

    def read(case):
        if case == "checkpoint":
            return folder / "checkpoint_final.pth"
        with np.load(folder / f"{case}.npz") as found:
            return found["logits"], found["labels"]

    return read


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Return a function (case) that writes model folder, image and statistics into the cwd."""
    monkeypatch.chdir(tmp_path)

    def write(case, **more):
        write_folder(Path(case), case, **more)
        image = image_of(case)
        with h5py.File("image.h5", "w") as file:
            file["main"], file["voxel_size"] = image, (NANOMETRES,) * 3
        Path("statistics.json").write_text(json.dumps(statistics_of([image])))
        return case

    return write


def line(*words):
    """Run a command line; return its exit code."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code


def say(*words):
    """Run a command line in this process; return its exit code and what it printed."""
    found = CliRunner().invoke(cli, [str(word) for word in words])
    return found.exit_code, found.output


def inference(case, model, *more):
    """Return the arguments of inference, with statistics where the plans need them."""
    statistics = [] if case == "plain" else ["--normalize-statistics", "statistics.json"]
    return ["inference", "--framework", "nnunet", "--convnet-model", model, *statistics,
            "--device", "cpu", *more]  # fmt: skip


# One pass of one fold: whether the bytes depend on the tasks is a question of the boxes alone, and
# one case of test_tasks_write_the_bytes_of_one_task runs all folds and mirror images.
ONE_PASS = ("--folds", "0", "--no-mirror")


def result(path="out.h5"):
    """Return the voxels of a file."""
    with h5py.File(path) as file:
        return file["main"][:]


@pytest.mark.parametrize("case", CASES)
def test_the_logits_are_those_of_nnunet_in_float32(case, model, outputs):
    """From the folder through import-model: within 1e-5 of nnU-Net's own code in float32."""
    folder = model(case)
    assert line("import-model", folder, "--output", "model.zip") == 0
    more = inference(case, "model.zip", "--output-kind", "logit")
    assert line("load-h5", "-f", "image.h5", *more, "save-h5", "-f", "out.h5") == 0
    logits, _ = outputs(case)
    found = result()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, logits, rtol=0, atol=1e-5)
    assert np.abs(logits).max() > 1  # random weights, not zeros


@pytest.mark.parametrize("case", CASES)
def test_the_labels_are_those_of_nnunet_but_for_ties_in_float16(case, model, outputs):
    """Labels equal those of the unchanged nnU-Net, except where its float16 sums nearly tie.

    Near the corners of the image, only the corner of one patch counts, where the window is below
    the smallest float16 (6e-8): there, the logits of nnU-Net are rounded to whole numbers.
    """
    model(case)
    more = inference(case, case, "--output-dtype", "argmax")
    assert line("load-h5", "-f", "image.h5", *more, "save-h5", "-f", "out.h5") == 0
    logits, labels = outputs(case)
    found = result().reshape(labels.shape)
    differ = found != labels
    top = np.sort(logits, axis=0)
    near = top[-1] - top[-2]
    if case == "residual":  # regions are compared with a probability of 0.5, a logit of 0
        near = 2 * np.abs(logits).min(0)
    print(f"{case}: {differ.sum()} of {differ.size} labels differ, where float16 decides")  # noqa: T201
    weight, count = window_sums(case)
    # 11 bits of each sum, and multiples of 2^-24 of each term.
    error = 1e-2 + count * 2.0**-24 * (1 + np.abs(logits).max(0)) / weight
    assert (near[differ] < 2 * error[differ]).all()
    assert differ.mean() < 0.01
    assert len(np.unique(found)) > 1


def window_sums(case):
    """Return the sum of the float16 windows at each voxel, and the number of patches."""
    plan = read_model(case).plan
    size = plan.patch_size
    domain = BoundingBox.from_size((0, 0, 0), CASES[case]["size"])
    grid = PatchGrid(PatchGeometry(size, size, size // 2), domain, "zero", spread=True)
    window = np.maximum(create_window(size, "nnunet"), 2.0**-24)
    weight, count = (np.zeros(domain.size) for _ in range(2))
    for patch in grid.patches(domain):
        inside = patch.intersection(domain)
        weight[inside.slices()] += window[inside.slices(patch.start)]
        count[inside.slices()] += 1
    return weight, count


@pytest.mark.parametrize(
    ("case", "size", "passes"),
    [
        ("plain", (14, 27, 13), ()),
        ("plain", (7, 9, 13), ONE_PASS),
        ("residual", (5, 7, 11), ONE_PASS),
        ("flat", (8, 3, 9), ONE_PASS),
        pytest.param("plain", (7, 9, 13), (), marks=pytest.mark.long),
        pytest.param("residual", (5, 7, 11), (), marks=pytest.mark.long),
        pytest.param("flat", (8, 3, 9), (), marks=pytest.mark.long),
    ],
)
def test_tasks_write_the_bytes_of_one_task(case, size, passes, model):
    """Tasks that are cut off the patch grid equal the whole image to the byte."""
    model(case)
    write_model(read_model(case), "model.zip")
    more = inference(case, "model.zip", "--output-kind", "logit", *passes)
    assert line("load-h5", "-f", "image.h5", *more, "save-h5", "-f", "whole.h5") == 0
    whole = result("whole.h5")
    domain = BoundingBox.from_size((0, 0, 0), CASES[case]["size"])
    boxes = list(BoxGrid.covering(domain, Zyx(*size), respect_stop=True))
    assert len(boxes) > 1
    for number, box in enumerate(boxes):
        words = ["create-bbox", "-s", *box.start, "-p", *box.stop, "load-h5", "-f", "image.h5",
                 "--expand-margin-size", "auto", *more,
                 "save-h5", "-f", f"{number}.h5"]  # fmt: skip
        assert line(*words) == 0
        part = whole[(slice(None), *box.slices())]
        assert result(f"{number}.h5").tobytes() == part.tobytes()


def test_probabilities_are_softmax_or_sigmoid_of_the_blended_logits(model, outputs):
    """The default output: softmax for labels, sigmoid for regions, after blending."""
    for case in ("plain", "residual"):
        model(case)
        words = inference(case, case, "--folds", ",".join(CASES[case]["folds"]))
        assert line("load-h5", "-f", "image.h5", *words, "save-h5", "-f", "out.h5") == 0
        logits = torch.from_numpy(outputs(case)[0])
        wanted = logits.softmax(0) if case == "plain" else logits.sigmoid()
        np.testing.assert_allclose(result(), wanted.numpy(), rtol=0, atol=1e-5)


def test_folds_and_mirror_images_change_the_result(model):
    """--folds 1 and --no-mirror run what they say: the bare network on a patch."""
    model("plain")
    found = read_model("plain", ["1"])
    batch = torch.from_numpy(np.random.RandomState(3).rand(1, 2, 8, 12, 16).astype(np.float32))
    bare = found.load(mirror=False)
    assert len(bare.folds) == 1
    torch.testing.assert_close(bare(batch), bare.folds[0](batch), rtol=0, atol=0)
    mirrored = found.load()(batch)
    assert not torch.allclose(mirrored, bare(batch), atol=1e-3)
    flipped = found.load()(batch.flip([2])).flip([2])
    torch.testing.assert_close(flipped, mirrored, rtol=0, atol=1e-5)
    backend = create_backend(
        "nnunet", model="plain", input_patch_size=(8, 12, 16), output_patch_size=(8, 12, 16),
        num_input_channels=2, num_output_channels=3, device="cpu", folds=("1",), mirror=False,
    )  # fmt: skip
    torch.testing.assert_close(backend(batch), bare(batch), rtol=0, atol=1e-5)


def test_an_imported_model_is_one_file_of_data(model, tmp_path):
    """It has equal bytes for equal models, names no code, and loads without the folder."""
    model("plain")
    for name in ("one.zip", "two.zip"):
        write_model(read_model("plain"), name)
    assert Path("one.zip").read_bytes() == Path("two.zip").read_bytes()
    network = {"framework": "nnunet", "model": "one.zip"}
    assert network_files(network) == {"one.zip": "data"}
    assert network_code(network) == ()
    for folder in ("plain", shutil.make_archive("packed", "zip", ".", "plain")):
        with pytest.raises(OptionError, match="run chunkflow import-model"):
            network_files(network | {"model": folder})
    before = read_model("plain")
    after = read_model("one.zip")
    assert after.plan.__dict__ | {"normalization": 0} == before.plan.__dict__ | {"normalization": 0}
    assert after.mirror_axes == before.mirror_axes == (0, 1, 2)
    shutil.rmtree("plain")
    for fold in after.folds:
        assert after.weights(fold).keys() == after.load().folds[0].state_dict().keys()
    assert read_model("packed.zip").folds == ("0", "1")


def test_the_checkpoint_of_a_trainer_needs_no_trust(model, outputs):
    """What nnU-Net's trainer itself writes, with optimizer and log, is read as data."""
    model("plain")
    target = Path("plain/fold_0/checkpoint_final.pth")
    shutil.copy(outputs("checkpoint"), target)
    assert len(read_model("plain", ["0"]).load().folds) == 1


class Malice:
    """Creates a file when it is unpickled."""

    def __reduce__(self):
        return os.makedirs, ("ran", 0o777, True)


def test_a_checkpoint_that_runs_code_is_refused_unless_trusted(model):
    """Nothing is executed without --trust-weights, and the message names the way."""
    model("plain")
    shutil.rmtree("plain")
    write_folder(Path("plain"), "plain", logging=Malice())
    with pytest.raises(ModelError, match="import-model --trust-weights"):
        read_model("plain")
    assert not Path("ran").exists()
    code, text = say("import-model", "plain", "--output", "model.zip")
    assert code != 0
    assert "--trust-weights" in text
    assert not Path("model.zip").exists()
    assert line("import-model", "plain", "--output", "model.zip", "--trust-weights") == 0
    assert Path("ran").is_dir()
    Path("ran").rmdir()
    read_model("model.zip").load()
    assert not Path("ran").exists()


def test_weights_of_an_imported_model_are_never_unpickled_even_if_trusted(model):
    """A file that pretends to be imported cannot smuggle in a pickle."""
    model("plain")
    write_model(read_model("plain", ["0"]), "model.zip")
    with zipfile.ZipFile("model.zip") as old, zipfile.ZipFile("bad.zip", "w") as new:
        for name in old.namelist():
            data = pickle.dumps(Malice()) if name.endswith(".pt") else old.read(name)
            new.writestr(name, data)
    found = read_model("bad.zip", trust_weights=True)
    with pytest.raises(ModelError, match="other than weights|damaged"):
        found.load()
    assert not Path("ran").exists()


def change(path, *keys, to):
    """Replace one value in a JSON file; ``None`` removes it."""
    content = json.loads(Path(path).read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = to
    if to is None:
        del place[keys[-1]]
    Path(path).write_text(json.dumps(content))


CONFIGURATION = ("configurations", "3d_fullres")


@pytest.mark.parametrize(
    ("file", "keys", "to", "message"),
    [
        ("plans", ("configurations",), None, "lacks 'configurations' or 'transpose_forward', so"),
        ("plans", (*CONFIGURATION, "architecture"), None, "neither 'architecture' nor"),
        ("plans", (*CONFIGURATION, "patch_size"), None, "is incomplete.*patch_size"),
        ("plans", (*CONFIGURATION, "patch_size"), [8, 12, 0], "three positive sizes"),
        ("plans", ("transpose_forward",), [0, 0, 1], "a permutation of 0, 1, 2"),
        ("plans", (*CONFIGURATION, "previous_stage"), "3d_lowres", "3d_lowres as input .a cascade"),
        ("plans", (*CONFIGURATION, "preprocessor_name"), "Mine", "the preprocessor Mine"),
        ("plans", (*CONFIGURATION, "inherits_from"), "3d_fullres", "3d_fullres' .* inherits from"),
        ("plans", (*CONFIGURATION, "inherits_from"), "mine", "lacks configuration 'mine'"),
        ("plans", (*CONFIGURATION, "normalization_schemes"), ["CTNormalization"],
         "normalises 1 channels, but dataset.json has 2"),
        ("plans", (*CONFIGURATION, "normalization_schemes"), ["Mine", "NoNormalization"],
         "normalises with Mine, but only"),
        ("plans", ("foreground_intensity_properties_per_channel", "0", "std"), None,
         "channel 0 with CTNormalization, but .* lacks one of"),
        ("plans", (*CONFIGURATION, "architecture", "network_class_name"), "a.b.Primus",
         "is a Primus, but only PlainConvUNet and ResidualEncoderUNet"),
        ("dataset", ("channel_names",), {"0": "CT"}, "2 channels, but dataset.json has 1"),
        ("dataset", ("channel_names",), None, "has no channel_names"),
        ("dataset", ("labels",), {"cell": 1}, "has no label background with the number 0"),
        ("dataset", ("labels",), None, "is incomplete"),
        ("dataset", ("labels", "glia"), [1, 2], "has 2 regions, but regions_class_order is None"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_in_one_sentence(model, file, keys, to, message):
    """Unknown plans, unsupported features, channels that do not fit: before the first task."""
    folder = model("plain")
    change(f"{folder}/{file}.json", *keys, to=to)
    with pytest.raises(ModelError, match=message) as raised:
        read_model(folder)
    assert "\n" not in str(raised.value)


def test_missing_files_and_folds_are_named(model, tmp_path):
    """A folder without plans, a fold that does not exist, a checkpoint that was not written."""
    folder = model("plain")
    with pytest.raises(OptionError, match=r"--folds 0,7: model .* has no fold 7; .* 0, 1$"):
        read_model(folder, ["0", "7"])
    with pytest.raises(OptionError, match=r"--folds 1,1 lists a fold twice; use --folds 1$"):
        read_model(folder, ["1", "1"])
    with pytest.raises(ModelError, match=r"has no fold with checkpoint_best.pth.*--checkpoint"):
        read_model(folder, checkpoint="best")
    with pytest.raises(ModelError, match="does not exist; give the folder that nnU-Net"):
        read_model("nowhere")
    Path("text.zip").write_text("no archive")
    with pytest.raises(ModelError, match="neither a folder nor a zip archive"):
        read_model("text.zip")
    Path(folder, "dataset.json").unlink()
    with pytest.raises(ModelError, match=r"contains no dataset\.json"):
        read_model(folder)


def test_weights_of_another_plan_are_refused(model):
    """The message names the first difference and the trainer."""
    folder = model("plain")
    change(
        f"{folder}/plans.json", *CONFIGURATION, "architecture", "arch_kwargs",
        "features_per_stage", to=[4, 6, 9],
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"do not match the PlainConvUNet.*trainer nnUNetTrainer"):
        read_model(folder).load()


@pytest.mark.parametrize("axes", [(0, 0), (2, 1), (3,), "zyx", (0.5,), 1])
def test_mirror_axes_are_checked(model, axes):
    """Each flip is computed once; a file cannot ask for more than the eight mirror images."""
    model("plain")
    write_model(read_model("plain", ["0"]), "model.zip")
    shutil.rmtree("plain")
    write_folder(Path("plain"), "plain", inference_allowed_mirroring_axes=axes)
    with pytest.raises(ModelError, match=r"mirror.*in ascending order"):
        read_model("plain")
    about = {"format": "chunkflow nnunet 1", "configuration": "3d_fullres", "mirror_axes": axes}
    with zipfile.ZipFile("model.zip") as old, zipfile.ZipFile("bad.zip", "w") as new:
        for name in old.namelist():
            new.writestr(name, json.dumps(about) if name == "nnunet.json" else old.read(name))
    with pytest.raises(ModelError, match=r"mirrors along the axes .* in ascending order"):
        read_model("bad.zip")


def test_a_patch_that_the_network_cannot_pool_is_refused_with_one_that_it_can(model):
    """The divisor is the product of the strides, in the axes of the image."""
    model("residual")
    assert read_model("residual").plan.divisor == Zyx(4, 4, 4)
    model("flat")
    assert read_model("flat").plan.divisor == Zyx(2, 1, 2)
    words = inference("residual", "residual", "--input-patch-size", 12, 18, 8)
    code, text = say("load-h5", "-f", "image.h5", *words, "save-h5", "-f", "out.h5")
    assert code != 0
    assert "--input-patch-size must be a multiple of (4, 4, 4), such as (12, 20, 8)" in text


@pytest.mark.parametrize("name", ["os.system", "torch.nn.functional.relu", "torch.nn.Missing", 3])
def test_plans_name_only_classes_of_torch(model, name):
    """A plan cannot make the program import or call anything else."""
    folder = model("plain")
    keys = (*CONFIGURATION, "architecture", "arch_kwargs", "nonlin")
    change(f"{folder}/plans.json", *keys, to=name)
    with pytest.raises(ModelError, match=r"only classes of torch\.nn"):
        read_model(folder).load()


@pytest.mark.parametrize(
    ("case", "more", "message"),
    [
        ("plain", ["--num-input-channels", 1], "input channels of model plain is 2"),
        ("plain", ["-c", 2], "output channels of model plain is 3"),
        ("plain", ["--normalize-mean", "3,4", "--normalize-std", "1,1"], "suffice only for ZScore"),
        ("plain", ["--folds", "5"], "has no fold 5; choose from the folds 0, 1"),
    ],
)  # fmt: skip
def test_options_that_contradict_the_model_are_refused(model, case, more, message):
    """Before the image is read."""
    model(case)
    code, text = say("load-h5", "-f", "nowhere.h5", *inference(case, case, *more))
    assert code == 2
    assert message in text


def test_a_model_that_needs_statistics_says_how_to_get_them(model):
    """z-score and rescaling use the whole image: the error names both commands."""
    model("residual")
    words = inference("plain", "residual")
    code, text = say("load-h5", "-f", "image.h5", *words)
    assert code == 2
    assert "compute-statistics" in text
    assert "sum-statistics" in text


def set_voxel_size(size_mm):
    """Set the voxel size of the image, millimetres, zyx."""
    with h5py.File("image.h5", "a") as file:
        del file["voxel_size"]
        file["voxel_size"] = [mm * NANOMETRES for mm in size_mm]


@pytest.mark.parametrize("name", RESAMPLED)
def test_other_voxel_sizes_are_resampled_as_nnunet_does(name, model, outputs):
    """Image by splines, logits back linearly, thick sections apart: within 1e-5 of nnU-Net.

    nnU-Net clips sections that it resamples apart each to their own extremes, which tasks do not
    know: voxels at the extremes of a section differ, which changes 15 % of these logits, by at most
    1e-3. The image is random noise; smooth images have far fewer such voxels.
    """
    case, size_mm = RESAMPLED[name]
    folder = model(case)
    set_voxel_size(size_mm)
    # also where the plan needs none: interpolated voxels are clipped to the image's extremes
    statistics = ["--normalize-statistics", "statistics.json"] if case == "plain" else []
    more = inference(case, folder, "--output-kind", "logit", *statistics)
    assert line("load-h5", "-f", "image.h5", *more, "save-h5", "-f", "out.h5") == 0
    logits, _ = outputs(name)
    difference = np.abs(result() - logits)
    if name == "plain-thick":
        assert np.mean(difference > 1e-5) < 0.2
        assert difference.max() < 2e-3
    else:
        assert difference.max() < 1e-5


@pytest.mark.parametrize("name", RESAMPLED)
def test_tasks_of_resampled_images_write_the_bytes_of_one_task(name, model):
    """At least eight tasks, whose boxes are not whole numbers of the network's voxels."""
    case, size_mm = RESAMPLED[name]
    folder = model(case)
    set_voxel_size(size_mm)
    size = " ".join(str(mm * NANOMETRES) for mm in size_mm).split()
    volume = ("--volume-path", "zarr://image.zarr")
    save = ("save-volume", *volume, "--block-size", 8, 8, 8)
    assert line("load-h5", "-f", "image.h5", "--voxel-size", *size, *save) == 0
    network = inference(case, folder, *ONE_PASS)
    load = ("load-volume", *volume, "--expand-margin-size", "auto")
    assert line(*load, *network, "save-h5", "-f", "whole.h5") == 0
    shape = result("whole.h5").shape[1:]
    task = [(n // 2 + 4) // 4 * 4 for n in shape]
    save = ("save-volume", "--volume-path", "zarr://out.zarr", "--block-size", 4, 4, 4)
    assert line("generate-tasks", *volume, "--chunk-size", *task, *load, *network, *save) == 0
    made = open_volume("zarr://out.zarr")
    np.testing.assert_array_equal(made.read(made.bounds).array, result("whole.h5"))


@pytest.fixture
def cropped(model):
    """Return a function (name) that writes the model and the image with a border of zeros."""

    def write(name, offset=(0, 0, 0)):
        case, size_mm, border = CROPPED[name]
        folder, image = model(case), image_of(case, border)
        size = [mm * NANOMETRES for mm in size_mm]
        with h5py.File("image.h5", "w") as file:
            file["main"], file["voxel_size"], file["voxel_offset"] = image, size, offset
        sizes = image.shape[1:]
        pairs = [(a, size - b) for (a, b), size in zip(border, sizes, strict=True)]
        ends = [(a + o, b + o) for (a, b), o in zip(pairs, offset, strict=True)]
        inside = image[(slice(None), *(slice(a, b) for a, b in pairs))]
        box = {"foreground": "_".join(f"{a}-{b}" for a, b in ends)}
        Path("statistics.json").write_text(json.dumps(statistics_of([inside]) | box))
        return inference(case, folder, "--normalize-statistics", "statistics.json"), size

    return write


@pytest.mark.parametrize("name", CROPPED)
def test_images_are_cropped_and_resampled_as_nnunet_does(name, cropped, outputs):
    """To the box of all voxels but zeros, from its corner, with the statistics of this box."""
    network, _ = cropped(name)
    more = [*network, "--output-kind", "logit"]
    assert line("load-h5", "-f", "image.h5", *more, "save-h5", "-f", "out.h5") == 0
    logits, _ = outputs(name)
    np.testing.assert_allclose(result(), logits, rtol=0, atol=1e-5)
    assert (logits == 0).mean() > 0.2
    assert ((result() == 0) == (logits == 0)).all()


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        pytest.param(name, offset, marks=[pytest.mark.long] * (at != number % 2))
        for number, name in enumerate(CROPPED)
        for at, offset in enumerate([(0, 0, 0), (4, 8, 4)])
    ],
)
def test_tasks_of_cropped_images_write_the_bytes_of_one_task(name, offset, cropped):
    """Tasks inside, across and outside of the box; the image may begin anywhere."""
    network, size = cropped(name, offset)
    network += ONE_PASS
    volume = ("--volume-path", "zarr://image.zarr")
    save = ("save-volume", *volume, "--block-size", 4, 4, 4)
    assert line("load-h5", "-f", "image.h5", "--voxel-size", *size, *save) == 0
    load = ("load-volume", *volume, "--expand-margin-size", "auto")
    assert line("load-volume", *volume, *network, "save-h5", "-f", "whole.h5") == 0
    save = ("save-volume", "--volume-path", "zarr://out.zarr", "--block-size", 4, 4, 4)
    tasks = ("generate-tasks", *volume, "--chunk-size", 4, 8, 8)
    assert line(*tasks, *load, *network, *save) == 0
    made = open_volume("zarr://out.zarr")
    np.testing.assert_array_equal(made.read(made.bounds).array, result("whole.h5"))


@pytest.fixture
def masked(model):
    """Write a model that normalises inside a mask, and an image with holes; return options."""
    case, size_mm, border = MASKED["residual-masked"]
    folder, image = model(case, masked=True), image_of(case, border, holes=True)
    size = [mm * NANOMETRES for mm in size_mm]
    with h5py.File("image.h5", "w") as file:
        file["main"], file["voxel_size"] = image, size
    volume = ("--volume-path", "zarr://image.zarr")
    save = ("--block-size", 4, 4, 4)
    assert (
        line("load-h5", "-f", "image.h5", "--voxel-size", *size, "save-volume", *volume, *save) == 0
    )
    tasks = ("generate-tasks", *volume, "--chunk-size", 4, 12, 8)
    # The commands of docs/from-nnunet.md: zeros that are not connected to the border are holes.
    assert line(*tasks, "load-zarr", "--store", "image.zarr", "nonzero-mask", "--inverse",
                "connected-components", "--connectivity", 6,
                "save-zarr", "--store", "zero-parts.zarr", *save) == 0  # fmt: skip
    assert line("stitch-labels", "zero-parts.zarr", "zarr://zeros.zarr") == 0
    assert line("filter-labels", "zeros.zarr", "zarr://holes.zarr", "--no-border") == 0
    assert line(*tasks, "load-zarr", "--store", "zeros.zarr", "nonzero-mask",
                "mask", "--volume-path", "holes.zarr", "--mip", 0, "--inverse",
                "nonzero-mask", "--inverse",
                "save-zarr", "--store", "mask.zarr", *save) == 0  # fmt: skip
    load = (
        "load-zarr",
        "--store",
        "mask.zarr",
        "--output-name",
        "mask",
        "--expand-margin-size",
        "auto",
    )
    assert line(*tasks, "load-zarr", "--store", "image.zarr", *load[:-2],
                "compute-statistics", "-s", "counts", "--mask-name", "mask") == 0  # fmt: skip
    assert line("sum-statistics", "counts", "--foreground", "--output", "statistics.json") == 0
    more = ("--normalize-statistics", "statistics.json", "--normalize-mask", "mask")
    return image, tasks, load, [*inference("plain", folder), *more]


def test_voxels_are_normalised_inside_the_mask_as_nnunet_does(masked, outputs):
    """The mask that tasks make is that of nnU-Net, with its holes; so are the logits of tasks."""
    image, tasks, load, network = masked
    mask = open_volume("mask.zarr")
    wanted = binary_fill_holes((image != 0).any(axis=0))
    np.testing.assert_array_equal(mask.read(mask.bounds).array.reshape(wanted.shape) != 0, wanted)
    assert wanted.sum() > (image != 0).any(axis=0).sum()
    network = [*network, "--output-kind", "logit"]
    raw = ("load-zarr", "--store", "image.zarr")
    assert line(*raw, *load[:-2], *network, "save-h5", "-f", "whole.h5") == 0
    logits, _ = outputs("residual-masked")
    np.testing.assert_allclose(result("whole.h5"), logits, rtol=0, atol=1e-5)
    save = ("save-zarr", "--store", "out.zarr", "--block-size", 4, 4, 4)
    assert line(*tasks, *raw, *load[-2:], *load, *network, *save) == 0
    made = open_volume("out.zarr")
    np.testing.assert_array_equal(made.read(made.bounds).array, result("whole.h5"))


def test_a_mask_is_needed_or_refused(model):
    """The error names the operator that makes the mask."""
    model("residual", masked=True)
    code, text = say("load-h5", "-f", "image.h5", *inference("residual", "residual"))
    assert code == 2
    assert "make the mask with nonzero-mask" in text
    model("plain")
    words = inference("plain", "plain", "--normalize-mask", "mask")
    code, text = say("load-h5", "-f", "image.h5", *words)
    assert code == 2
    assert "model plain normalises all voxels; leave --normalize-mask out" in text
    words = ("inference", "--framework", "identity", "--input-patch-size", 4, 4, 4)
    code, text = say("load-h5", "-f", "image.h5", *words, "--normalize-mask", "mask")
    assert code == 2
    assert "only models of --framework nnunet normalise inside a mask" in text


def test_a_foreground_of_another_image_is_refused(cropped):
    """It would lie outside of the image; options that cannot be combined with it are named."""
    network, _ = cropped("plain-cropped")
    described = json.loads(Path("statistics.json").read_text())
    Path("statistics.json").write_text(json.dumps(described | {"foreground": "0-14_0-27_3-26"}))
    code, text = say("load-h5", "-f", "image.h5", *network, "save-h5", "-f", "out.h5")
    assert code != 0
    assert "lie in 0-14_0-27_3-26, but the bounds of the image are 0-14_0-27_0-25" in text
    words = [*network, "--output-margin", 1, 1, 1]
    code, text = say("load-h5", "-f", "image.h5", *words, "save-h5", "-f", "out.h5")
    assert code == 2
    assert "--output-margin cannot be combined with the foreground in statistics.json" in text


def test_voxel_sizes_that_cannot_be_meant_are_refused(model):
    """An image whose file states no voxel size has voxels of 1 nm, not of a millimetre."""
    model("plain")
    set_voxel_size((1e-6, 1e-6, 1e-6))
    words = inference("plain", "plain")
    code, text = say("load-h5", "-f", "image.h5", *words, "save-h5", "-f", "out.h5")
    assert code != 0
    assert "give the voxel size of the image with --voxel-size" in text


def test_plans_that_resample_otherwise_are_refused_by_name():
    """An unknown function or order is named, but only for images that need it."""
    from nnunet_models import dataset_of, plans_of

    box = BoundingBox((0, 0, 0), (20, 20, 20))
    for changes, message in (
        ({"resampling_fn_data": "resample_torch"}, "resamples data with resample_torch"),
        ({"resampling_fn_data_kwargs": {"order": 2}}, "data by splines of order 2"),
        ({"resampling_fn_probabilities_kwargs": None}, "resamples probabilities with"),
    ):
        plans = json.loads(json.dumps(plans_of("plain")))
        (name,) = plans["configurations"]
        plans["configurations"][name] |= changes
        rule = read_plan("m", plans, dataset_of("plain"), name).resampling
        assert rule(box, (NANOMETRES,) * 3).resampling.scale == (1, 1, 1)
        with pytest.raises(ModelError, match=message):
            rule(box, (NANOMETRES, 2 * NANOMETRES, NANOMETRES))


@pytest.mark.parametrize("name", ["plain-resampled", "flat-resampled"])
def test_the_offset_of_an_image_does_not_change_the_result(name, model):
    """Resampled voxels begin at the corner of the image, wherever it is."""
    case, size_mm = RESAMPLED[name]
    folder = model(case)
    set_voxel_size(size_mm)
    network = inference(case, folder, "--output-kind", "logit")
    for number, offset in enumerate([(0, 0, 0), (3, 5, -7)]):
        load = ("load-h5", "-f", "image.h5", "--voxel-offset", *offset)
        assert line(*load, *network, "save-h5", "-f", f"{number}.h5") == 0
    assert result("0.h5").tobytes() == result("1.h5").tobytes()


def test_clipping_after_normalising_equals_clipping_before(model):
    """CTNormalization as nnU-Net writes it: clip, subtract, divide, in float32, to the byte."""
    from nnunet_models import dataset_of, plans_of

    plan = read_plan("m", plans_of("plain"), dataset_of("plain"), "3d_fullres")
    image = np.random.RandomState(0).randint(0, 256, (2, 9, 9, 9)).astype(np.uint8)
    out = np.empty(image.shape, np.float32)
    plan.normalization.normalizer(2)(image, out)
    expected = image.astype(np.float32)
    expected[0] = (np.clip(expected[0], 22.0, 203.0) - np.float32(101.5)) / np.float32(31.25)
    expected[1] /= np.float32(255)
    assert out.tobytes() == expected.tobytes()
