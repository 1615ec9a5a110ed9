"""What commands do with a small known input: a line, and what is true of its tasks.

`a` is image.h5: uint8, (4, 6, 8) at (2, 4, 6), voxels of 40 × 4 × 4 nm, as is the volume file://em.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

IMAGE = "load-h5 -f image.h5"
MAP = "load-h5 -f map.h5"  # (3, 4, 6, 8), float32 in [0, 1]
LABELS = "load-h5 -f labels.h5"  # uint32


def boxes(*expected):
    """The tasks have these boxes."""
    return lambda tasks, data: [str(task) for task in tasks] == list(expected)


def chunk(make, name="chunk", at="2-6_4-10_6-14"):
    """The only task has a chunk of this content and place; *make* is given the data."""

    def check(tasks, data):
        (task,) = tasks
        found, expected = task[name], make(data)
        assert str(found.bbox) == at, found
        assert found.dtype == expected.dtype, found
        np.testing.assert_allclose(found.array, expected, rtol=1e-6)
        return True

    return check


def skipped(*why):
    """Tasks end early for these reasons; None goes on."""

    def check(tasks, data):
        said = [None if task.outcome is None else str(task.outcome) for task in tasks]
        assert len(said) == len(why), said
        return all((w is None) == (s is None) and (w or "") in (s or "") for w, s in zip(why, said))

    return check


def files(*names):
    """These files are there."""
    return lambda tasks, data: all(Path(name).exists() for name in names)


def same(name="chunk", **attributes):
    """The chunk is the image, and has these attributes."""

    def check(tasks, data):
        found = tasks[0][name]
        np.testing.assert_array_equal(found.array, data["a"])
        return all(str(getattr(found, key)) == str(value) for key, value in attributes.items())

    return check


ZERO = "create-chunk -s 4 6 8 -t 2 4 6 -e 40 4 4 -p zero"
TASKS = "generate-tasks -c 4 3 8 -s 2 4 6 -z 4 6 8"

CASES = [
    # --- sources ----------------------------------------------------------------------------------
    ("create-bbox -s -2 0 4 -z 2 4 4", boxes("-2-0_0-4_4-8")),
    ("create-bbox --start 1 2 3 --stop 2 4 6", boxes("1-2_2-4_3-6")),
    ("generate-tasks -c 1 2 2 -s 0 0 3 -r 1 4 5", boxes("0-1_0-2_3-5", "0-1_2-4_3-5")),
    ("generate-tasks -c 1 2 2 -z 1 2 4 -i 1 -p 2", boxes("0-1_0-2_2-4")),
    ("generate-tasks -c 1 1 4 -g 1 1 2", boxes("0-1_0-1_0-4", "0-1_0-1_4-8")),
    ("generate-tasks -c 1 1 4 -z 1 1 6 --respect-stop", boxes("0-1_0-1_0-4", "0-1_0-1_4-6")),
    ("generate-tasks -b 0-1_0-1_5-9 -c 1 1 8 -a 1 1 4", boxes("0-1_0-1_4-12")),
    ("--mip 0 generate-tasks -v file://em -c 4 6 8 -m 0", boxes("2-6_4-10_6-14")),
    (f"{TASKS} -f boxes.npy", files("boxes.npy")),
    ("fetch-task-from-file -f tasks.npy -i 1 -g 1", boxes("2-6_7-10_6-14")),
    ("fetch-task-from-file -f tasks.npy -i 0 -g 2", boxes("2-6_4-7_6-14", "2-6_7-10_6-14")),
    (f"{TASKS} adjust-bbox -c -1 0 0 1 0 2", boxes("1-7_4-7_6-16", "1-7_7-10_6-16")),
    # --- skipping and marking ---------------------------------------------------------------------
    (f"{TASKS} skip-task-by-file -p done_ -s .txt", skipped("done_2-6_4-7_6-14.txt", None)),
    (f"{TASKS} skip-task-by-file -p done_ -s .txt -m missing", skipped(None, "done_2-6_7-10_6-14")),
    (f"{TASKS} skip-task-by-file -p done_ -s .txt -m empty", skipped("done_2", "done_2")),
    ("create-bbox -s 3 5 7 -z 2 1 6 skip-task-by-file -p done_ -s .txt -a 1", skipped("done_2")),
    (f"{ZERO} skip-all-zero", skipped("all zero")),
    (f"{IMAGE} skip-all-zero -i chunk", skipped(None)),
    (f"{ZERO} skip-all-zero -p zero_ -s .f -a -1 --chunk-bbox", files("zero_3-5_5-9_7-13.f")),
    (f"{TASKS} mark-complete -p marks/ -s .ok", files("marks/2-6_4-7_6-14.ok")),
    ("create-bbox -s 0 0 0 -z 1 1 1 load-json -f null.json -o no skip-none -i no -p none_ -s .f "
     "--touch",
     files("none_0-1_0-1_0-1.f")),
    (f"{TASKS} skip-task-by-blocks-in-volume -v file://em -m 0", skipped("em", "em")),
    # --- items ------------------------------------------------------------------------------------
    (f"{IMAGE} copy-var -f chunk -t again", same("again")),
    (f"{IMAGE} copy-var -t again --shallow-copy delete-var -v chunk", same("again")),
    ("load-json -f some.json -o said", lambda tasks, data: tasks[0]["said"] == {"a": [1]}),
    (f"{IMAGE} plugin -f twice -i chunk -o out", chunk(lambda d: d["a"] * 2, "out")),
    (f"{IMAGE} plugin -f twice.py -i chunk -o out -a times=3", chunk(lambda d: d["a"] * 3, "out")),
    ("cleanup -d flags -m empty -s .f",
     lambda t, d: sorted(path.name for path in Path("flags").iterdir()) == ["full.f", "other"]),
    # --- points and synapses ----------------------------------------------------------------------
    ("plugin -f things -o p,syns save-points -i p -f p.h5 save-synapses -i syns -f s_2.h5",
     files("p.h5", "s_2.h5")),
    ("create-bbox -s 0 0 0 -z 4 4 4 load-synapses -f syns_ -s .h5 -r 8 8 8 --c-order "
     "--remove-outside -o some", lambda t, d: len(t[0]["some"].pre) == 1),
    ("load-synapses -f syns_0-4_0-4_0-4.h5 --set-bbox", boxes("0-4_0-4_0-4")),
    # --- loading and saving -----------------------------------------------------------------------
    ("create-chunk -s 2 3 4 -d float64 -p zero -t 1 1 1 -e 8 8 8 -o z",
     chunk(lambda d: np.zeros((2, 3, 4)), "z", "1-3_1-4_1-5")),
    (f"{IMAGE} -v 0 0 0 -x 8 8 8 -l segmentation",
     same(voxel_offset="(0, 0, 0)", voxel_size_nm=(8.0, 8.0, 8.0), kind="segmentation")),
    (f"{IMAGE} -t 3 5 7 -p 4 6 9 -e uint16",
     chunk(lambda d: d["a"][1:2, 1:2, 1:3].astype("u2"), at="3-4_5-6_7-9")),
    (f"{MAP} -c 2 -t 2 4 6 -s 1 1 1 -o x",
     chunk(lambda d: d["m"][2:, :1, :1, :1], "x", "2-3_4-5_6-7")),
    (f"{IMAGE} --set-bbox", boxes("2-6_4-10_6-14")),
    ("load-h5 -f sub.h5 -d deep/array", chunk(lambda d: d["a"], at="0-4_0-6_0-8")),
    (f"{ZERO} save-h5 -f empty.h5 load-h5 -f zeros.h5 --remove-empty",
     lambda tasks, data: not Path("zeros.h5").exists()),
    (f"{IMAGE} save-h5 -f o.h5 -s 2 2 2 -c lzf -v 8 8 8 -d float32 --without-offset",
     files("o.h5")),
    (f"{IMAGE} save-tif -f o.tif -t uint16 -c lzw", files("o.tif")),
    (f"{IMAGE} save-pngs -o pngs/ -t uint8", files("pngs/00002.png", "pngs/00005.png")),
    ("load-tif -f image.tif -v 2 4 6 -s 8 8 8 -l image -d float32",
     chunk(lambda d: d["a"].astype("f4"))),
    ("load-png -p sections/ -t 2 4 6 -x 40 4 4", same(voxel_size_nm=(40.0, 4.0, 4.0))),
    ("load-png -p sections/ -t 2 4 6 -c 3 4 6 -s 1 6 8 --dtype uint16",
     chunk(lambda d: d["a"][1:2].astype("u2"), at="3-4_4-10_6-14")),
    ("load-npy -f image.npy -t 2 4 6 -s 40 4 4 -o n", same("n", voxel_size_nm=(40.0, 4.0, 4.0))),
    ("load-precomputed -v file://em -m 0", same()),
    ("create-bbox -s 3 5 7 -z 1 1 1 load-precomputed -v file://em -e 1 1 1 -o em",
     chunk(lambda d: d["a"][:3, :3, :3], "em", "2-5_4-7_6-9")),
    ("load-precomputed -v file://em -s 2 4 6 -z 1 6 8 --no-fill-missing",
     chunk(lambda d: d["a"][:1], at="2-3_4-10_6-14")),
    ("load-zarr -f em.zarr -s 2 4 6 -z 4 6 8 -v 8 8 8", same(voxel_size_nm=(8.0, 8.0, 8.0))),
    (f"{IMAGE} save-precomputed -v file://new -p 2 --upload-log", files("new/info", "new/log")),
    (f"{IMAGE} save-precomputed -v file://dark -t 256",
     lambda t, d: not Path("dark/4_4_40").exists()),
    (f"{IMAGE} save-zarr -s new.zarr -c 2 3 4 -r 8 8 8 --dtype uint8 -o zyx", files("new.zarr")),
    (f"{IMAGE} create-info -v file://n -b 2 3 4 -s 40 4 4 -e raw -t image -m 1",
     lambda t, d: len(json.loads(Path("n/info").read_text())["scales"]) == 2),
    ("create-info -i none -v file://n -b 2 3 4 -s 40 4 4 -o 1 2 3 -z 4 6 8 -d uint8 -f 1 2 2",
     files("n/info")),
    (f"{IMAGE} save-nrrd -i chunk -f o.nrrd", files("o.nrrd")),
    (f"{IMAGE} -o i save-precomputed -i i -v file://new -m 0 --fill-missing", files("new/info")),
    (f"{IMAGE} -o i save-zarr -s p.zarr --shape 8 12 16 -m 0 --infer-dtype -i i -c 2 2 2",
     files("p.zarr")),
    ("load-zarr -f em.zarr -b NestedDirectoryStore -o z", same("z")),
    ("load-zarr -f nested.zarr -p deep/em", same()),
    ("create-bbox -s 0 0 0 -z 1 1 1 load-json -f null.json -o no save-h5 -i no -f no.h5 --touch",
     files("no.h5")),
    ("load-png -p digits/em -d 3 -o png", same("png", voxel_offset="(0, 0, 0)")),
    ("load-precomputed -v file://em --blackout-sections", chunk(
        lambda d: np.where(np.arange(4)[:, None, None] == 1, np.uint8(0), d["a"]))),
    ("load-precomputed -v file://levels --validate-mip 1", same()),
    (f"{IMAGE} -o i downsample-upload -i i -v file://levels -f 2 2 2 -c 0 -p 2 --fill-missing",
     files("levels/8_8_80")),
    # --- processing -------------------------------------------------------------------------------
    (f"{IMAGE} -o i threshold -i i -t 100 -o mask",
     chunk(lambda d: (d["a"] > 100).astype("u1"), "mask")),
    (f"{IMAGE} -o i normalize-intensity -i i -o n",
     chunk(lambda d: (d["a"] / np.float32(127.5) - 1).astype("f4"), "n")),
    (f"{IMAGE} -o i normalize-section-shang -i i -o n --nominalmin 0 --nominalmax 1 "
     "--clipvalues true", lambda t, d: 0 <= t[0]["n"].array.min() < t[0]["n"].array.max() <= 1),
    (f"{IMAGE} normalize-contrast -l 0.1 -u 0.1 --minval 9 --maxval 200 --whole",
     lambda t, d: (t[0]["chunk"].array.min(), t[0]["chunk"].array.max()) == (9, 200)),
    (f"{IMAGE} crop-margin -m 1 1 1 1 2 3",
     chunk(lambda d: d["a"][1:-1, 1:-2, 1:-3], at="3-5_5-8_7-11")),
    (f"create-bbox -s 3 5 7 -z 1 1 1 {IMAGE} -t 2 4 6 -s 4 6 8 crop-margin --crop-bbox",
     chunk(lambda d: d["a"][1:2, 1:2, 1:2], at="3-4_5-6_7-8")),
    (f"{MAP} quantize --mode xy",
     chunk(lambda d: np.rint(255 * d["m"][:2].mean(0)).astype("u1"))),
    (f"{MAP} quantize --mode z", chunk(lambda d: np.rint(255 * d["m"][2]).astype("u1"))),
    (f"{MAP} -o m channel-voting -i m -o v",
     chunk(lambda d: (d["m"].argmax(0) + 1).astype("u1"), "v")),
    (f"{MAP} copy-var -t two multiply -i chunk -m two -o square",
     chunk(lambda d: d["m"] ** 2, "square")),
    (f"{IMAGE} mask -v file://mask -m 0", chunk(lambda d: d["a"] * d["k"])),
    (f"{IMAGE} mask -v file://mask -m 0 --inverse", chunk(lambda d: d["a"] * (1 - d["k"]))),
    (f"{IMAGE} downsample -i chunk -f 1 2 2 -o small",
     lambda t, d: t[0]["small"].size == (4, 3, 4)),
    (f"{IMAGE} median-filter", lambda t, d: t[0]["chunk"].size == (4, 6, 8)),
    (f"{IMAGE} gaussian-filter -i chunk -s 0.0", same()),
    (f"{IMAGE} inference -f identity -s 4 6 8 -v 0 0 0 -c 1 -d float32 --bump zung -b 2",
     chunk(lambda d: (d["a"] / np.float32(255))[None].astype("f4"))),
    (f"{IMAGE} inference -f identity -s 4 6 6 -v 0 0 4 -c 1 --num-input-channels 1 --augment",
     chunk(lambda d: (d["a"] / np.float32(255))[None].astype("f4"))),
    (f"{IMAGE} inference -f identity -s 2 4 4 -v 1 2 2 -n 3 2 3 -o x --output-crop-margin 0 1 1",
     lambda t, d: str(t[0]["x"].bbox) == "2-6_5-9_7-13"),
    # --- labels -----------------------------------------------------------------------------------
    (f"{LABELS} threshold -t 0 connected-components -c 26",
     lambda t, d: t[0]["chunk"].array.max() == 2),
    (f"{IMAGE} connected-components -t 100 -c 6", lambda t, d: t[0]["chunk"].array.max() > 2),
    (f"{LABELS} -o l mask-out-objects -i l -o big -d 5",
     chunk(lambda d: np.where(d["l"] == 7, 7, 0).astype("u4"), "big")),
    (f"{LABELS} mask-out-objects -s 9", chunk(lambda d: np.where(d["l"] == 9, 9, 0).astype("u4"))),
    (f"{LABELS} load-h5 -f labels.h5 -o gt evaluate-segmentation -s chunk -g gt -o score",
     lambda t, d: t[0]["score"]["rand_split"] == t[0]["score"]["rand_merge"] == 1),
    # --- plugins ----------------------------------------------------------------------------------
    (f"{IMAGE} plugin -f inverse -i chunk -o chunk", chunk(lambda d: 255 - d["a"])),
    (f"{LABELS} plugin -f fill_segmentation_holes -i chunk", lambda t, d: t[0]["chunk"].size),
    (f"{IMAGE} plugin -f stretch-intensity -a min_threshold=50;max_threshold=200",
     lambda t, d: (t[0]["chunk"].array.min(), t[0]["chunk"].array.max()) == (0, 255)),
    (f"{IMAGE} plugin -f transpose", chunk(lambda d: d["a"].transpose(), at="6-14_4-10_2-6")),
]  # fmt: skip

# Options of which no line is run here, and why.
NOT_RUN = {
    "--use-https": "for a public bucket: tests/store",
    "--disbatch": "takes its number from the scheduler's environment: tests/ops",
    "--slurm-job-array": "takes its number from the scheduler's environment: tests/ops",
    "--num": "takes from a queue for ever: tests/ops/test_fetch_task_from_sqs.py",
    "--shard": "refused: mesh-manifest --multires writes shards of its own",
    "napari": "opens a window: tests/ops/test_napari.py",
    "neuroglancer": "waits for a person: tests/ops/test_neuroglancer.py",
    "view": "waits for a person: tests/ops/test_view.py",
}
