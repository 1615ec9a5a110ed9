"""The engine on chunks: which patches are used, what is returned, and what is said about it."""

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import GeometryError, OptionError
from chunkflow_py.inference.engine_settings import EngineSettings
from chunkflow_py.inference.inferencer import Inferencer
from chunkflow_py.inference.network_source import check_network, network_files
from chunkflow_py.inference.patch_grid import PatchGeometry
from chunkflow_py.inference.placement import Placement
from chunkflow_py.pipeline.operator import Outline

DOMAIN = BoundingBox.from_size((10, 20, 30), (17, 30, 31))
GEOMETRY = PatchGeometry(Zyx(6, 12, 12), Zyx(4, 8, 8), Zyx(1, 2, 2))


IDENTITY = {"framework": "identity", "device": "cpu"}


def create(geometry=GEOMETRY, grid="auto", *, settings=None, own=None, **more):
    """Return an inferencer around the identity network, one channel."""
    setting = EngineSettings(
        geometry,
        num_output_channels=1,
        keep_stride=grid == "padded",
        spread=grid == "spread",
        **(settings or {}),
    )
    return Inferencer(Placement(setting, grid=grid, **more), IDENTITY, **(own or {}))


def image(box=DOMAIN, domain=DOMAIN, seed=0):
    """Return a uint8 chunk on *box*, the same voxels whatever the box."""
    whole = np.random.default_rng(seed).integers(0, 256, domain.size, dtype=np.uint8)
    return Chunk(whole[box.slices(domain.start)], box.start, (40, 4, 4), "image", domain)


@pytest.mark.parametrize("grid", ["auto", "anchored", "padded", "spread"])
def test_without_a_task_the_domain_is_returned(grid):
    """A chunk without a task box gives its whole domain, with voxel size and domain kept."""
    output = create(grid=grid)(image())
    assert output.bbox == DOMAIN
    assert output.domain == DOMAIN
    assert output.voxel_size_nm == (40, 4, 4)
    assert output.kind == "probability"
    np.testing.assert_allclose(output.array[0], image().array / 255, atol=1e-6)


@pytest.mark.parametrize("grid", ["auto", "anchored", "padded", "spread"])
def test_exactly_the_task_box_is_returned_from_exactly_the_required_input(grid):
    """Cut to what `required_input` says, the result is the task's box and nothing else."""
    task = BoundingBox.from_size((13, 27, 33), (5, 11, 20))
    inferencer = create(grid=grid)
    need = inferencer.required_input(task, DOMAIN)
    output = inferencer(image(need), task)
    assert output.bbox == task
    np.testing.assert_allclose(output.array[0], image().cut(task).array / 255, atol=1e-6)


def test_the_output_margin_grows_the_result_inside_the_domain():
    """--output-margin adds voxels around the task's box, but none outside of the volume."""
    task = BoundingBox.from_size((10, 27, 33), (5, 11, 20))
    inferencer = create(output_margin=Zyx(2, 3, 4))
    assert inferencer(image(), task).bbox == BoundingBox(Zyx(10, 24, 29 + 1), Zyx(17, 41, 57))


def test_too_small_a_margin_falls_back_with_one_warning_that_names_the_margin(caplog):
    """Auto uses the legacy patches, says so once, and names both ways out."""
    task = BoundingBox.from_size((13, 26, 36), (5, 13, 13))
    chunk = image(task.grow((1, 2, 2)))
    inferencer = create()
    for _ in range(2):
        assert inferencer(chunk, task).bbox == task
    warnings = [r.message for r in caplog.records if "grid starts at the chunk" in r.message]
    assert len(warnings) == 1
    assert "--expand-margin-size auto" in warnings[0]
    margin = warnings[0].rpartition("--expand-margin-size ")[2].split(" (")[0]
    enough = Zyx.of(int(v) for v in margin.split())
    caplog.clear()
    create()(image(task.grow(enough).intersection(DOMAIN)), task)
    assert "grid starts at the chunk" not in caplog.text


@pytest.mark.parametrize("grid", ["anchored", "padded", "spread"])
def test_too_small_a_margin_is_an_error_where_the_grid_is_asked_for_by_name(grid):
    """--grid anchored never computes something else."""
    task = BoundingBox.from_size((13, 26, 36), (5, 13, 13))
    with pytest.raises(GeometryError, match=rf"--grid {grid}: chunk .*--expand-margin-size auto"):
        create(grid=grid)(image(task), task)


def test_the_legacy_grid_drops_margin_and_overlap():
    """--grid chunk: result = chunk - 2 x (patch margin + crop), crop defaults to the overlap."""
    chunk = image()
    margin = GEOMETRY.margin
    assert create(grid="chunk")(chunk).bbox == DOMAIN.grow(-(margin + (1, 2, 2)))
    masked = create(grid="chunk", mask_output_chunk=True)
    assert masked(chunk).bbox == DOMAIN.grow(-margin)
    cropped = create(grid="chunk", output_crop_margin=Zyx(2, 3, 4))
    assert cropped(chunk).bbox == DOMAIN.grow(-(margin + (2, 3, 4)))
    task = BoundingBox.from_size((15, 30, 40), (2, 4, 4))
    assert cropped.required_input(task, DOMAIN) == task.grow(margin + (2, 3, 4)).intersection(
        DOMAIN
    )


def test_published_lines_with_margin_and_crop_return_the_task():
    """Margin 1 2 2 loaded, crop 1 2 2: what chunkflow 1.x users type gives the task's box."""
    geometry = PatchGeometry(Zyx(4, 8, 8), Zyx(4, 8, 8), Zyx(1, 2, 2))
    task = BoundingBox.from_size((13, 26, 36), (8, 16, 16))
    chunk = image(task.grow((1, 2, 2)))
    output = create(geometry, output_crop_margin=Zyx(1, 2, 2), patch_num=Zyx(3, 3, 3))(chunk, task)
    assert output.bbox == task
    np.testing.assert_allclose(output.array[0], image().cut(task).array / 255, atol=1e-6)


def test_a_crop_margin_without_a_task_crops_the_domain():
    """--output-crop-margin on a chunk without a task box returns the domain less the margin."""
    output = create(output_crop_margin=Zyx(2, 3, 4))(image())
    assert output.bbox == DOMAIN.grow((-2, -3, -4))


def test_a_wrong_patch_number_names_the_size_that_fits():
    """--patch-num is checked against the chunk, and the error says which chunk would hold it."""
    geometry = PatchGeometry(Zyx(20, 256, 256), Zyx(20, 256, 256), Zyx(4, 64, 64))
    chunk = Chunk(np.zeros((36, 448, 449), np.uint8))
    with pytest.raises(OptionError, match=r"has \(2, 2, 3\) patches .* chunk of \(36, 448, 448\)"):
        create(geometry, patch_num=Zyx(2, 2, 2))(chunk)
    create(geometry, patch_num=Zyx(2, 2, 3))(chunk)


def test_a_patch_number_of_the_corner_selects_the_patches_of_the_corner(caplog):
    """The old count with cropped patches gives the old patches and box, with one warning."""
    geometry = PatchGeometry(Zyx(6, 12, 12), Zyx(4, 8, 8), Zyx(1, 2, 2))
    box = BoundingBox.from_size((0, 0, 0), (18, 24, 24))  # 5 x 3 x 3 patches that cover 16, 20, 20
    old = create(geometry, patch_num=Zyx(5, 3, 3))
    expected = create(geometry, grid="chunk", patch_num=Zyx(5, 3, 3))(image(box, box))
    for _ in range(2):
        output = old(image(box, box))
        assert output.bbox == expected.bbox
        np.testing.assert_array_equal(output.array, expected.array)
    assert caplog.text.count("as with --grid chunk") == 1
    assert create(geometry)(image(box, box)).bbox == box
    with pytest.raises(OptionError, match=r"--patch-num is \(5, 3, 3\)"):
        create(geometry, grid="anchored", patch_num=Zyx(5, 3, 3))(image(box, box))


def test_a_domain_smaller_than_the_patch_is_padded_with_a_warning(caplog):
    """One patch covers it, and the result is still the identity."""
    domain = BoundingBox.from_size((0, 0, 0), (3, 5, 9))
    output = create()(image(domain, domain))
    np.testing.assert_allclose(output.array[0], image(domain, domain).array / 255, atol=1e-6)
    assert "smaller than the patch (4, 8, 8)" in caplog.text


def test_no_padding_limits_the_output_to_what_lies_deep_enough():
    """--pad none: tasks at the border return less, never padded voxels."""
    inferencer = create(settings={"pad": "none"})
    assert inferencer(image()).bbox == DOMAIN.grow((-1, -2, -2))
    task = BoundingBox.from_size(DOMAIN.start, (6, 9, 9))
    assert inferencer(image(), task).bbox == BoundingBox(DOMAIN.start + (1, 2, 2), task.stop)
    corner = BoundingBox.from_size(DOMAIN.start, (1, 2, 2))
    with pytest.raises(GeometryError, match="does not intersect"):
        inferencer(image(), corner)


def test_broken_congruence_is_said_with_the_alternative(caplog):
    """A divisor that stride or last patch break is warned of once; the padded grid keeps it."""
    geometry = PatchGeometry(Zyx(8, 16, 16), Zyx(8, 16, 16), Zyx(4, 8, 8))
    create(geometry, own={"patch_divisor": Zyx(4, 8, 8)})(image())
    assert "less well than they could; use --grid padded" in caplog.text
    caplog.clear()
    create(geometry, grid="padded", own={"patch_divisor": Zyx(4, 8, 8)})(image())
    assert "congruent" not in caplog.text
    odd = PatchGeometry(Zyx(8, 16, 16), Zyx(8, 16, 16), Zyx(3, 7, 8))
    create(odd, grid="padded", own={"patch_divisor": Zyx(4, 8, 8)})(image())
    assert "use --output-patch-overlap 4 8 8" in caplog.text


def test_wide_integers_are_warned_of(caplog):
    """uint16 images are divided by 65535, which darkens 12-bit data: said once."""
    chunk = Chunk(image().array.astype(np.uint16), DOMAIN.start)
    inferencer = create(own={"warn_of_dtype": True})
    inferencer(chunk)
    inferencer(chunk)
    assert caplog.text.count("are divided by 65535, the maximum of their dtype") == 1


def test_augmentation_says_what_it_takes_the_channels_for(caplog):
    """Without --output-kind three channels are taken for affinities, and that is said."""
    geometry = PatchGeometry(Zyx(4, 8, 8), Zyx(4, 8, 8), Zyx(1, 2, 2))
    setting = EngineSettings(geometry, num_output_channels=3, augment=True)
    output = Inferencer(Placement(setting), IDENTITY)(image())
    assert output.kind == "affinity"
    assert "treats the 3 output channels as affinity" in caplog.text


@pytest.mark.parametrize(
    ("case", "error", "words"),
    [
        (lambda: create(grid="padded", settings={"pad": "none"}), OptionError, "--pad reflect"),
        (
            lambda: create(output_crop_margin=Zyx(9, 9, 9))(image()),
            GeometryError,
            "removes all voxels",
        ),
        (
            lambda: create(grid="chunk", output_crop_margin=Zyx(9, 9, 9))(image()),
            GeometryError,
            "removes all voxels of",
        ),
        (
            lambda: create()(image(), BoundingBox.from_size((99, 0, 0), (1, 1, 1))),
            GeometryError,
            "does not intersect",
        ),
    ],
)
def test_what_cannot_work_is_refused(case, error, words):
    """Each contradiction is one sentence with a remedy."""
    with pytest.raises(error, match=words):
        case()


def test_the_network_is_let_go_at_the_end_and_clamping_is_summed_up(caplog):
    """As a context the inferencer loads first, and says at the end what uint8 clamped."""
    chunk = Chunk(np.full((4, 8, 8), 2, np.float32))
    geometry = PatchGeometry(Zyx(4, 8, 8), Zyx(4, 8, 8), Zyx(1, 2, 2))
    with create(geometry, settings={"output_dtype": "uint8"}) as inferencer:
        assert inferencer.engine is not None
        assert inferencer(chunk).array.min() == 255
    assert inferencer.engine is None
    assert "in total, 256 output values" in caplog.text


def test_missing_files_are_found_before_any_work(tmp_path):
    """A model or weight file that does not exist, or no model at all, is an option error."""
    check_network({"framework": "identity", "model": None, "weights": None})
    check_network({"framework": "universal", "model": "rsunet", "weights": None})
    with pytest.raises(OptionError, match="--convnet-model .*gone.py does not exist"):
        check_network({"framework": "pytorch", "model": "gone.py", "weights": None})
    with pytest.raises(OptionError, match="--convnet-model .* is a folder"):
        check_network({"framework": "pytorch", "model": str(tmp_path), "weights": None})
    weights = str(tmp_path / "w.pt")
    with pytest.raises(OptionError, match="--convnet-weight-path .*w.pt does not exist"):
        check_network({"framework": "pytorch", "model": "rsunet", "weights": weights})
    with pytest.raises(OptionError, match="needs a network"):
        check_network({"framework": "pytorch", "model": None, "weights": None})


def test_the_profile_is_known_when_the_network_is_loaded():
    """What decides the bytes is told between entering and leaving."""
    inferencer = create()
    assert inferencer.profile is None
    with inferencer:
        assert inferencer.profile == inferencer.engine.backend.profile
        assert inferencer.profile["framework"] == "identity"


def test_networks_in_folders_are_not_taken_along(tmp_path):
    """A package is taken along as an archive, not as a folder."""
    (tmp_path / "rdf.yaml").touch()
    archive = str(tmp_path / "net.zip")
    (tmp_path / "net.zip").touch()
    assert network_files({"model": archive}) == {archive: "code"}
    for path in (tmp_path, tmp_path / "rdf.yaml"):
        with pytest.raises(OptionError, match="can include only single files; pack"):
            network_files({"model": str(path)})


@pytest.mark.parametrize("grid", ["anchored", "padded", "spread"])
@pytest.mark.parametrize("more", [Zyx(0, 0, 0), Zyx(2, 3, 1)])
def test_the_margin_named_is_the_smallest_that_suits_all_tasks(grid, more):
    """With the margin of the message every task of the line runs; with one voxel less not all."""
    tasks = list(BoxGrid.covering(DOMAIN, Zyx(5, 7, 9)))
    inferencer = create(grid=grid, output_margin=more)
    inferencer.prepare(Outline(tasks, DOMAIN, has_tasks=True))
    with pytest.raises(GeometryError) as caught:
        inferencer(image(tasks[0]), tasks[0])
    margin = Zyx.of(int(v) for v in str(caught.value).rpartition("size ")[2].split(" (")[0].split())
    assert margin == inferencer.settings.grid(DOMAIN).sufficient_margin(
        BoxGrid.covering(DOMAIN, Zyx(5, 7, 9)), more
    )
    need = [inferencer.required_input(task, DOMAIN) for task in tasks]
    for axis in range(3):
        for less in (0, 1):
            smaller = margin - Zyx(*(less if a == axis else 0 for a in range(3)))
            loaded = [task.grow(smaller).intersection(DOMAIN) for task in tasks]
            enough = all(a.contains(b) for a, b in zip(loaded, need, strict=True))
            assert enough == (less == 0)


def test_without_known_boxes_the_margin_named_suits_any():
    """In a line fed by a queue, a voxel may lie at the end of a patch: patch - 1 + its margin."""
    task = BoundingBox.from_size((13, 27, 33), (1, 1, 1))
    inferencer = create(grid="anchored")
    inferencer.prepare(Outline(has_tasks=True))
    with pytest.raises(GeometryError, match=r"--expand-margin-size 4 9 9 \(zyx"):
        inferencer(image(task), task)
    for z, y, x in np.ndindex(*DOMAIN.size):
        box = BoundingBox.from_size(DOMAIN.start + (z, y, x), (1, 1, 1))
        assert box.grow(Zyx(4, 9, 9)).contains(inferencer.required_input(box, DOMAIN))


def test_the_output_margin_holds_for_legacy_patches_too():
    """Where auto falls back, the result still reaches beyond the task by the output margin."""
    geometry = PatchGeometry(Zyx(4, 8, 8), Zyx(4, 8, 8), Zyx(1, 2, 2))
    task = BoundingBox.from_size((13, 26, 36), (5, 13, 13))
    chunk = image(task.grow((1, 2, 2)))
    inferencer = create(geometry, output_margin=Zyx(1, 1, 1))
    assert inferencer(chunk, task).bbox == task.grow((1, 1, 1))


ONE_TASK = Outline(BoxGrid(DOMAIN.start, DOMAIN.size, DOMAIN.size, Zyx(1, 1, 1)), DOMAIN, True)


def test_memory_is_told_before_anything_is_read():
    """What the network takes is known, part by part, once it is loaded; chunks are the line's."""
    inferencer = create()
    inferencer.prepare(ONE_TASK)
    assert inferencer.memory(None) is None
    with inferencer:
        need = inferencer.memory(None)
    assert need.size == DOMAIN.size
    assert {"engine workspace", "network activations", "batches"} <= need.held.keys()
    assert not {"network weights", "input chunk", "output chunk"} & need.held.keys()
    assert need.complete


def test_a_line_that_cannot_fit_is_refused_with_what_would():
    """What other operators take counts, and is less for smaller chunks."""
    inferencer = create()
    inferencer.prepare(ONE_TASK)
    with inferencer:
        inferencer.check_memory(1_000_000)
        with pytest.raises(OptionError, match=r"expected to peak at 1\.00 PB of host memory, "):
            inferencer.check_memory(10**15)


def test_a_chunk_that_cannot_fit_is_refused_with_one_that_would():
    """Before anything is read, the error holds both sizes and a chunk that works."""
    domain = BoundingBox.from_size((0, 0, 0), (10_000, 20_000, 20_000))
    inferencer = create(PatchGeometry(Zyx(20, 256, 256), Zyx(20, 256, 256), Zyx(4, 64, 64)))
    inferencer.prepare(Outline(None, domain))
    with (
        pytest.raises(OptionError, match=r"expected to peak .* are available; .* chunks of"),
        inferencer,
    ):
        pass
