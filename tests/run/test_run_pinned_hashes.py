"""Pins the hash of a step for many pipelines, so that renaming an option cannot change it.

A run keeps the hash of each step. Its records, its messages and `--fork` compare that hash, and the
hash covers every operator option by the name of its parameter, defaults included. A user may submit
a run with one version and continue it with the next, so the hashes below are part of what is
stored. An option may get a new name, if the new name maps to the stored key. If a test of this file
fails, do not replace the hash: keep the stored key. Only a change of the stored bytes justifies new
hashes, and it also needs a new `OUTPUT_VERSION` in `chunkflow_py.run.run_spec`.

The hash covers local places as absolute paths. `hash_in` therefore moves each spec to the folder
`/pinned`, and the pins hold on every machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rigs.command_line import say

from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.run_spec import Spec

SUBMIT = "submit --no-rehearse --run run"
TASKS = "generate-tasks --roi-size 16 32 32 --chunk-size 8 16 16"
SHEETS = "generate-tasks --roi-size 16 32 32 --chunk-size 8 32 32"  # whole sections
NEW = f"{SUBMIT} {TASKS}"
IMAGE = f"{NEW} load-zarr --store raw.zarr"
MAP = f"{NEW} load-volume --volume-path map.zarr"
LABELS = f"{NEW} load-precomputed --volume-path seg"
SAVE = "save-zarr --chunk-size 8 16 16 --store out.zarr"
PATCH = "--input-patch-size 8 16 16 --output-patch-overlap 0 0 0"

# The hash of the last step, and the command line. Long and short options are both pinned.
PINNED = [
    # --- load -------------------------------------------------------------------------------------
    ("33422692b5e3d0a0cbe8fbd453f7ce97",
     f"{NEW} create-chunk --size 8 16 16 --dtype uint16 --pattern zero --voxel-offset 0 0 0 "
     "--voxel-size 40 4 4 --output-name blank save-h5 -i blank -f zeros_"),
    ("7d232cce5c3686c4d0e449046f06571f",
     f"{NEW} load-h5 -f raw.h5 -e float32 -l image -x 40 4 4 {SAVE}"),
    ("a0184d7465beffb5ff996f467634c76a",
     f"{NEW} load-h5 --file-name sub.h5 --dataset-path deep/array --voxel-offset 0 0 0 "
     "--channels 1 --expand-margin-size 1 2 2 crop-margin --crop-bbox save-h5 -f cut_"),
    ("00e6c9bf5a2c3c2e6ad988ed8e26129d",
     f"{NEW} load-npy --file-name raw.npy --voxel-offset 0 0 0 --voxel-size 40 4 4 {SAVE}"),
    ("7336b8cc96ea887debb151bf88f783f1",
     f"{NEW} load-nrrd --file-name raw.nrrd --dtype float32 --order zyx save-nrrd --file-name "
     "nrrd_ --dtype uint8 --encoding raw"),
    ("dcbcd7888e96b630a0c7adbf6427c2c9",
     f"{NEW} load-mrc --file-name raw.mrc --voxel-size 40 4 4 --bytes unsigned {SAVE}"),
    ("031bd13520750a3ba9c71d38d49ce462",
     f"{SUBMIT} {SHEETS} load-png --path pngs/ --digit-num 5 --voxel-size 40 4 4 --dtype uint8 "
     "save-pngs --output-path copies/ --dtype uint16"),
    ("4ed26b2d72f3fd9e243b901594d1ca23",
     f"{NEW} load-tif --file-name raw.tif --voxel-size 40 4 4 --layer-type image save-tif "
     "--file-name tif_ --dtype uint16 --compression lzw"),
    ("a97ee8601018cb8ddff0123e177984b6",
     f"{NEW} load-n5 --n5-dir raw.n5 --group-path volumes/s0 --no-fill-missing {SAVE}"),
    ("bd0d782e92dadbdf75ba55e25b0aaa67",
     f"{NEW} load-tensorstore --driver zarr3 --kvstore raw.zarr/0 --axes zyx --voxel-size 40 4 "
     f"4 --cache 1000000 {SAVE}"),
    ("a05ba7a9858cf26b279ac06121055c8b",
     f"{NEW} load-precomputed -v em -m 0 -e 1 2 2 --blackout-sections crop-margin -m 1 2 2 1 2 "
     f"2 {SAVE}"),
    ("2c5feb8998a0d1e18223815b1313d6f2",
     f"{NEW} load-volume --volume-path precomputed://em --mip 0 --voxel-size 40 4 4 "
     "--output-name first copy-var --from-name first --to-name again --shallow-copy delete-var "
     f"--var-names first {SAVE} --input-name again"),
    ("8df9461866678b216c7d566d3939bf38",
     f"--mip 1 {SUBMIT} generate-tasks --volume-path levels --chunk-size 8 16 16 "
     "load-precomputed --volume-path levels save-volume --volume-path precomputed://copy --mip "
     "1 --block-size 8 16 16 --factor 1 2 2 --encoding png"),
    ("fa2c2d930caacbda17f6e67243400569",
     f"{NEW} load-json --file-path limits.json --output-name numbers skip-none --input-name "
     f"numbers --prefix flags/ --suffix .none --no-touch load-zarr -f raw.zarr {SAVE}"),
    # --- process images and maps ------------------------------------------------------------------
    ("cccc01a27da684306059f04b3cdd48cd",
     f"{IMAGE} clahe --kernel-size 4 8 8 --clip-limit 0.02 --whole {SAVE}"),
    ("a8a9196298b29857d3fe36252fac3fb0",
     f"{IMAGE} gaussian-filter --sigma 1.5 --sigma-z 0.5 median-filter --size 1 3 3 --mode "
     f"nearest {SAVE}"),
    ("5a7eb3142a009dab7aceeac3fb9dc752",
     f"{IMAGE} inverse normalize-intensity mapto01 {SAVE}"),
    ("02496a6f6e397acdc6595a9bd503b240",
     f"{IMAGE} normalize-contrast -l 0.02 -u 0.03 --minval 2 --maxval 250 --whole {SAVE}"),
    ("ef9a860988a007924bc10e87b5da4ee8",
     f"{IMAGE} normalize-contrast --levels histograms --min-coverage 0.5 {SAVE}"),
    ("b605134da298bbb4a85e905f00ceac2b",
     f"{IMAGE} normalize-section-shang --nominalmin 0 --nominalmax 255 --clipvalues true {SAVE}"),
    ("24e5b29ffe6891fc53b56c09c2db2aad",
     f"{IMAGE} rescale-intensity --low 3 --high 200 --out-high 100 --dtype float32 "
     f"stretch-intensity --min-threshold 10 --max-threshold 90 {SAVE}"),
    ("d86c7a2e7f302d4af16e9b9f505f0414",
     f"{IMAGE} stretch-intensity --min-threshold 10 --max-threshold 200 {SAVE}"),
    ("547d6f150c4884291fa6fa5733d4ae02",
     f"{IMAGE} downsample --factor 1 2 2 --mode mean --sparse save-h5 -f small_"),
    ("57e4afe35af46c88354cda1b9169850f",
     f"{IMAGE} transpose --axes xyz save-h5 --file-name turned_ --chunk-size 8 8 8 "
     "--compression lzf --without-offset --voxel-size 4 4 40 --dtype float32 --no-touch"),
    ("acda848facefea0afda15644213d8809",
     f"{MAP} quantize --mode z save-precomputed -v thumbnail --block-size 8 16 16 --encoding "
     "raw"),
    ("d095ceed289883f96ba3268c9dda61bc",
     f"{MAP} channel-voting {SAVE}"),
    ("b83da012a69d1965ff9fab3a4590c85f",
     f"{MAP} load-zarr -f raw.zarr -o weights multiply --multiplier-name weights --output-names "
     "product save-h5 -i product -f times_"),
    ("c90778d2da265a8bfa893e75b6fef2b4",
     f"{IMAGE} mask --volume-path mask.zarr --mip 0 --inverse --no-fill-missing {SAVE}"),
    ("fcdfb97f571225685830da6d0243dab9",
     f"{IMAGE} compute-statistics --statistics-path counts --range 0 255 --bins 256 --whole"),
    ("e835265529651f77c3111e660258932c",
     f"{IMAGE} statistics --output-name numbers preview --output-path sheets/ --width 64 "
     "--contrast 1 99"),
    # --- inference --------------------------------------------------------------------------------
    ("1d172a5b3e7f9ff5aa3fb2b26d39612b",
     f"{IMAGE} inference --framework identity {PATCH} --num-output-channels 1 {SAVE}"),
    ("1d172a5b3e7f9ff5aa3fb2b26d39612b",
     f"{IMAGE} inference -f identity -s 8 16 16 -v 0 0 0 -c 1 --device cpu --trust-weights "
     "--name again save-zarr -c 8 16 16 -s out.zarr --parallel 3"),
    ("1d172a5b3e7f9ff5aa3fb2b26d39612b",
     f"{NEW} --order checkerboard load-zarr --store raw.zarr inference --framework identity "
     f"{PATCH} --num-output-channels 1 {SAVE}"),
    ("1d172a5b3e7f9ff5aa3fb2b26d39612b",
     f"{SUBMIT} --exchange on --workers 7 {TASKS} load-zarr --store raw.zarr inference --framework "
     f"identity {PATCH} --num-output-channels 1 {SAVE}"),
    ("95db1845933e658331487f985ea7a6ea",
     f"{IMAGE} --expand-margin-size auto inference -f identity -s 8 16 16 -z 4 8 8 -v 1 2 2 -b "
     f"2 -c 3 --output-dtype uint8 --output-kind affinity --bump gaussian --pad edge {SAVE}"),
    ("ca978abc40037433b27f81c0a61e0bb5",
     f"{IMAGE} --expand-margin-size auto inference --convnet-model rsunet --input-patch-size 8 "
     "32 32 --output-patch-size 4 16 16 --output-patch-overlap 2 4 4 --num-output-channels 3 "
     "--dtype bfloat16 --no-cuda-graphs --activation sigmoid --activate after --patch-divisor "
     f"4 8 8 {SAVE}"),
    ("050c182d485c1c8f5ae3c5dab3ecc999",
     f"{IMAGE} inference -f identity {PATCH} -c 4 --mask-myelin-threshold 0.3 {SAVE}"),
    ("aa1760262187db3f10a390f6d9184daf",
     f"{IMAGE} inference -f pytorch -m net.py -w net.pt {PATCH} -c 2 --augment --normalize "
     "percentile --normalize-percentiles 2 98 --normalize-statistics counted.json "
     f"--skip-empty-patches --patch-mask mask.zarr --patch-mask-mip 0 --grid padded {SAVE}"),
    ("62808f4b9e3ca60bb2222f84d7822333",
     f"{IMAGE} inference -m net.py {PATCH} -c 2 --output-dtype float16 --output-names core "
     "--output-kind probability --output-channels 1 --spatial-dims 2 save-h5 -i core -f inner_"),
    ("06650f12524fa1cd0d57cb1082faa7c7",
     f"{IMAGE} inference -m net.py {PATCH} -c 2 --output-dtype argmax --normalize zscore "
     f"--normalize-statistics counted.json --model-voxel-size-nm 40 4 4 --tf32 --compile {SAVE}"),
    # --- save and create volumes ------------------------------------------------------------------
    ("ce77a7cf0787a387983336b394c599ca",
     f"{IMAGE} save-zarr --store shards.zarr --path images/raw --block-size 4 8 8 --shard-size "
     "8 16 16 --encoding blosc --plain --order zyx --dtype uint8"),
    ("08c34ac241d513a34dbf20ccf01882ea",
     f"{IMAGE} save-zarr -s older.zarr -c 8 16 16 --ome-version 0.4 --encoding gzip -r 8 8 8 "
     "--shape 16 32 32"),
    ("bf71f4e4cfd90a5484a88560bd1650d0",
     f"{IMAGE} save-volume --volume-path zarr://float.zarr -b 4 8 8 --shard-size 8 16 16 "
     "--dtype float32 --intensity-threshold 3 --fill-missing"),
    ("e231377c9fdfc6841ac87a57c0638e83",
     f"{IMAGE} save-precomputed --volume-path sharded --block-size 4 8 8 --shard-size 8 16 16 "
     "--encoding raw"),
    ("7768d683b4aaf4ea1c966a840bcca9b3",
     f"{LABELS} save-precomputed --volume-path labels --block-size 8 16 16 --encoding "
     "compressed_segmentation --upload-log --parallel 3"),
    ("0ccf5d42fcc66b8b3427880976179e5f",
     f"{SUBMIT} generate-tasks --roi-size 16 32 32 --chunk-size 16 32 32 load-volume -v levels "
     "-m 0 downsample-upload --volume-path levels --factor 1 2 2 --chunk-mip 0 --stop-mip 2 "
     "--mode mode --no-fill-missing"),
    ("eda933faa637ba4a9b9d1dfaf40a83e9",
     f"{IMAGE} create-volume --volume-path zarr://made.zarr --like raw.zarr --block-size 8 16 "
     "16 save-volume -v zarr://made.zarr"),
    ("5ef44377c7d6f73197eb8b331960cf00",
     f"{IMAGE} create-info --volume-path made --channel-num 1 --input-name none --block-size 8 "
     "16 16 --volume-size 16 32 32 --voxel-offset 0 0 0 --voxel-size 40 4 4 --data-type uint8 "
     "--layer-type image save-volume -v precomputed://made"),
    ("b41bdc23e3997ec909a2be267bf5b62d",
     f"{IMAGE} save-volume -v zarr://series.zarr --block-size 8 16 16 --times 3 --time 1"),
    # --- segment ----------------------------------------------------------------------------------
    ("8d342140793ea9e44ffb1d915d14af67",
     f"{IMAGE} connected-components --threshold 100 --connectivity 26 --global-ids {SAVE}"),
    ("3ef8927954d5e026a5f2fdf324b2b96a",
     f"{IMAGE} threshold --threshold 150 connected-components -c 18 --chunk-ids "
     f"mask-out-objects --dust-size-threshold 5 fill-segmentation-holes print-max-id {SAVE}"),
    ("26ac3c6b36a1022c8319b9ab4fe8097f",
     f"{LABELS} mask-out-objects --selected-obj-ids chosen.json {SAVE}"),
    ("a660a9c2927089870f46a072e6aa9363",
     f"{LABELS} mask-out-objects --selected-obj-ids 1,2 {SAVE}"),
    ("a5457e9cca644e9c3e60732c4dff6003",
     f"{MAP} --expand-margin-size 2 4 4 agglomerate --threshold 0.6 --aff-threshold-low 0.01 "
     "--aff-threshold-high 0.99 --no-flip-channel --fragments seeded --interior-threshold 0.6 "
     "--global-ids save-overlap --overlap-path overlaps crop-margin --crop-bbox save-volume "
     "--volume-path zarr://parts.zarr --block-size 8 16 16"),
    ("3f3698d28d2606a9756490fc118dece6",
     f"{NEW} link-labels --volume-path seg --links-path links --connectivity 18"),
    ("36d923a0732904ed1c77ed33417ad959",
     f"{NEW} link-labels --overlap-path overlaps --links-path links --minimum-overlap 0.25 "
     "--minimum-overlap-voxels 3"),
    ("2d9015d46b0eee89078ef4164e7ba5e6",
     f"{SUBMIT} generate-tasks --roi-size 1 1 1 --chunk-size 1 1 1 solve-labels --links-path "
     "links --table-path table"),
    ("df58e5b9bf34abb57ce2864b70d8b1bd",
     f"{LABELS} relabel --table-path table {SAVE}"),
    ("6950a32d519094c5fe7bce512c6f7790",
     f"{LABELS} load-precomputed -v seg -o groundtruth evaluate-segmentation --count-zero "
     "--ignore-truth-labels 1 --iou-threshold 0.7 --per-class --output rand --table-path "
     "tables --json rates_"),
    # --- points, synapses, meshes and skeletons ---------------------------------------------------
    ("d86c05dfc55da5f043aab3b597597b25",
     f"{MAP} --channels 0 detect-points --min-distance 10 --threshold-rel 0.4 --output-name "
     "peaks save-points --input-name peaks --file-path cloud_"),
    ("00e5e4de15dca0d0f7df04ff3d237df4",
     f"{MAP} --channels 0 detect-pre-synapses --min-distance 4 --threshold-rel 0.4 load-zarr -f "
     "raw.zarr -o grey adjust-pre --input-name grey --img-threshold 50 --radius 3 "
     "save-synapses --file-path tbars_"),
    ("fee2b6c9522673e958a9e28d25dde46d",
     f"{MAP} --channels 0 load-synapses --file-path tbars.json --resolution 40 4 4 "
     "--remove-outside detect-post-synapses --max-distance 20 --max-post-num 5 "
     "load-precomputed -v seg -o cells detect-duplicate-post --input-name cells "
     "--distance-threshold 8 --max-post-num 3 find-tbar-object -i cells save-synapses "
     "--input-name syns -f post_"),
    ("966280c139ba7cdc9e04f19c34bc1d05",
     f"{LABELS} --expand-margin-size auto mesh --output-path seg --simplification-factor 10 "
     "--max-simplification-error 20 --dust-threshold 20 --skip-ids 3"),
    ("ad14e581de022326e073143a87d2ebce",
     f"{LABELS} mesh -v 40 4 4 -o meshes -t ply --ids 1,2"),
    ("412819e3382ae0fee984d746703a8b8e",
     f"{SUBMIT} mesh-manifest --volume-path seg --digits 2"),
    ("3d11034624c414c9fc4509c27693d1f5",
     f"{LABELS} skeletonize --output-path seg --scale 2 --const 200 --dust-threshold 10 --ids "
     "1,2 --keep-holes --max-paths 9"),
    ("a897810b11c6a07f02f658b99c38677d",
     f"{LABELS} skeletonize -v 40 4 4 --no-fix-branching save-swc --output-prefix swc/"),
    ("7bdd05c1da1b9e1d33d50c98754c75a6",
     f"{NEW} load-skeleton --path swc/ --offset 1 2 3 save-swc -p moved/"),
    # --- make, move, skip and mark tasks ----------------------------------------------------------
    ("fde99a114c2ac4c42bd81d4ed367b20d",
     f"{NEW} --order hilbert --mask mask.zarr --mask-mip 0 --voxel-size 40 4 4 load-zarr -f "
     f"raw.zarr {SAVE}"),
    ("d188c7a651ab7140ea95ff7d4cf546a4",
     f"{NEW} --order morton --task-index-start 1 --task-index-stop 5 load-zarr -f raw.zarr "
     f"{SAVE}"),
    ("e2360920258e42b55c03a096ff8ad2ce",
     f"{SUBMIT} generate-tasks --roi-start 0 0 0 --roi-stop 16 30 30 --chunk-size 8 16 16 "
     "--respect-stop load-zarr -f raw.zarr save-h5 -f last_"),
    ("33bd1bb6694e5a96c83bf4c992fd09c2",
     f"{SUBMIT} generate-tasks --bounding-box 0-16_0-32_0-32 --grid-size 2 2 2 --chunk-size 8 "
     f"16 16 load-zarr -f raw.zarr {SAVE}"),
    ("8cabf0414a78d16c3ac9a4ac62623251",
     f"{SUBMIT} generate-tasks --bbox-file boxes.json load-zarr -f raw.zarr {SAVE}"),
    ("4af5defb853a1bd923e296ede8939502",
     f"{NEW} adjust-bbox --corner-offset -1 0 0 1 0 0 load-zarr -f raw.zarr save-h5 -f wide_"),
    ("f20bb83b926736345d3abbfe22851f88",
     f"{NEW} skip-task-by-file --prefix done/ --suffix .txt --mode missing --adjust-size 1 "
     "skip-task-by-blocks-in-volume --volume-path em --mip 0 load-zarr -f raw.zarr "
     f"skip-all-zero --prefix zero/ --suffix .z --adjust-size -1 --task-bbox {SAVE} "
     "mark-complete --prefix done/ --suffix .ok"),
    # --- plugins, options of submit, several steps ------------------------------------------------
    ("7afa00426470451a73b3bfefec523e0b",
     f"{IMAGE} plugin --file twice.py --input-names chunk --output-names chunk --args times=3 "
     "save-h5 -f thrice_"),
    ("40d5d59135aa7747e1f9700d259ba508",
     f"{IMAGE} plugin -f inverse -i chunk -o chunk {SAVE}"),
    ("85ddc04b19eb13ba2f9679ffffbf51f7",
     f"{SUBMIT} --device-class any {TASKS} load-zarr --store raw.zarr inference -f identity "
     f"{PATCH} -c 1 --lower-batch --device cpu --name net {SAVE}"),
    ("17b2f39822774b22fb912b0e7921e2e0",
     f"{IMAGE} threshold --channel 0 {SAVE} then --stage second {TASKS} load-zarr --store "
     "out.zarr inverse save-zarr -s two.zarr -c 8 16 16"),
]  # fmt: skip

NETWORK = """
import torch


class Model(torch.nn.Conv3d):
    def __init__(self):
        super().__init__(1, 2, 1)
"""
# The content of these files is part of a hash.
FILES = {
    "net.py": NETWORK,
    "net.pt": "weights",
    "twice.py": "def execute(chunk, times=2):\n    return chunk\n",
    "chosen.json": "[1, 2]",
    "boxes.json": '["0-8_0-16_0-16", "8-16_16-32_0-16"]',
    "counted.json": '{"version": 1, "channels": [{"mean": 60.5, "std": 20.25, "percentiles": '
    '{"2": 3, "98": 203.5}}]}',
}
# The content of these is not; they only have to exist.
INPUTS = {
    "limits.json": "{}",
    "em/blackout_section_ids.json": '{"section_ids": [3]}',
    "raw.n5/volumes/s0/attributes.json": '{"dimensions": [32, 32, 16], "blockSize": [16, 16, 8], '
    '"dataType": "uint8", "compression": {"type": "raw"}}',
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return a folder with all that the pipelines read."""
    import h5py
    import mrcfile

    folder = tmp_path_factory.mktemp("inputs")
    image = np.zeros((16, 32, 32), np.uint8)
    kept = image.copy()
    kept[:8, :16] = 1  # two of the eight tasks
    create = "--quiet create-volume --volume-size 16 32 32 --voxel-size 40 4 4 --block-size 8 16 16"
    with contextlib.chdir(folder):
        np.save("raw.npy", image)
        np.save("mask.npy", kept)
        with h5py.File("sub.h5", "w") as file:
            file["deep/array"] = np.stack([image, image])
        with mrcfile.new("raw.mrc") as file:
            file.set_data(image.view(np.int8))
        say(
            "--quiet load-npy -f raw.npy -s 40 4 4 save-h5 -f raw.h5 save-nrrd -f raw.nrrd "
            "save-tif -f raw.tif save-pngs -o pngs/ save-zarr -s raw.zarr -c 8 16 16 "
            "save-precomputed -v em --block-size 8 16 16"
        )
        say("--quiet load-npy -f mask.npy -s 40 4 4 save-zarr -s mask.zarr -c 8 16 16")
        say(f"{create} -v zarr://map.zarr --channel-num 3 --kind affinity --data-type float32")
        say(f"{create} -v precomputed://seg --kind segmentation --data-type uint32")
        say(f"{create} -v precomputed://levels --data-type uint8 --max-mip 1 --factor 1 2 2")
        for name, text in (FILES | INPUTS).items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text)
    return folder


@pytest.fixture
def submitted(inputs, tmp_path, monkeypatch):
    """Return a function that submits a command line in a new folder and returns the spec."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def submit(command, folder=tmp_path / "here"):
        shutil.copytree(inputs, folder)
        with contextlib.chdir(folder):
            say(command)
            return RunDirectory("run").spec

    return submit


def hash_in(place, spec, folder):
    """Return the hash of the last step, as if *spec* had been submitted in *place*."""
    moved = spec.content.replace(os.path.realpath(folder).encode(), str(place).encode())
    last = ""
    for step in Spec.parse(moved).steps:
        last = replace(step, previous=last).hash
    return last


@pytest.mark.parametrize(("pinned", "command"), PINNED, ids=[pinned[:8] for pinned, _ in PINNED])
def test_the_hash_of_a_step_is_as_ever(pinned, command, submitted, tmp_path):
    """A run of an earlier version continues, because its steps still have the same hashes."""
    spec = submitted(command)
    covered = json.dumps([step.options for step in spec.steps], indent=1)
    found = hash_in("/pinned", spec, tmp_path / "here")
    assert found == pinned, f"{command}\nhas another hash; it covers these options:\n{covered}"


@pytest.mark.parametrize("command", [PINNED[0][1], PINNED[-1][1]], ids=["one step", "two steps"])
def test_a_moved_spec_has_the_hash_of_the_new_folder(command, submitted, tmp_path):
    """`hash_in` gives the very hash that a submission in the other folder gives."""
    here, there = (tmp_path / "here", tmp_path / "a longer name")
    spec, other = submitted(command, here), submitted(command, there)
    assert spec.hash != other.hash
    assert hash_in(there, spec, here) == other.hash
    assert hash_in("/pinned", spec, here) == hash_in("/pinned", other, there)
