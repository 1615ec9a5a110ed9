"""The vocabulary: every command line of chunkflow 1.x for these commands means the same here."""

import ast
import re

import click
import pytest

from chunkflow_py.cli import catalog

# A command, then one option a line: spellings, *n values, {choices}, = default or ! required.
# No default: unset. ~: the default is another one on purpose.
TABLE = """
create-chunk
    --size/-s *3 = (64, 64, 64)
    --dtype/-d {uint8,uint32,uint16,uint64,float32,float64} = 'uint8'
    --pattern/-p {sin,zero,random} = 'sin'
    --voxel-offset/-t *3 = (0, 0, 0)
    --voxel-size/-e *3 = (1, 1, 1)
    --output-chunk-name/-o = 'chunk'
create-bbox
    --start/-s *3 !
    --stop/-p *3
    --size/-z *3
generate-tasks
    --volume-path/-v
    --mip/-m
    --roi-start/-s *3
    --roi-stop/-r *3
    --roi-size/-z *3
    --chunk-size/-c *3
    --bounding-box/-b
    --grid-size/-g *3
    --file-path/-f
    --queue-name/-q
    --respect-chunk-size/--respect-stop = True
    --aligned-block-size/-a *3
    --task-index-start/-i = 0
    --task-index-stop/-p
    --disbatch/--no-disbatch/-d = False
    --use-https/--use-credential = False
adjust-bbox
    --corner-offset/-c *6
load-h5
    --file-name/-f !
    --dataset-path/-d
    --dtype/-e {float32,float64,uint16,uint32,uint64,uint8}
    --layer-type/-l {image,segmentation}
    --voxel-offset/-v *3
    --voxel-size/-x *3
    --channels/-c
    --cutout-start/-t *3
    --cutout-stop/-p *3
    --cutout-size/-s *3
    --set-bbox/--no-set-bbox = False
    --remove-empty/--do-not-remove = False
    --output-chunk-name/-o = 'chunk'
save-h5
    --input-name/-i = 'chunk'
    --file-name/-f !
    --chunk-size/-s *3
    --compression/-c {gzip,lzf,szip} = 'gzip'
    --with-offset/--without-offset = True
    --voxel-size/-v *3
    --dtype/-d
    --touch/--no-touch = True
load-tif
    --file-name/-f !
    --voxel-offset/-v *3
    --voxel-size/-s *3
    --layer-type/-l {image,segmentation}
    --dtype/-d {uint8,uint16,uint32,uint64,float32,float64,float16}
    --output-chunk-name/-o = 'chunk'
save-tif
    --input-chunk-name/-i = 'chunk'
    --file-name/-f
    --dtype/-t {uint8,uint16,uint32,uint64,float32,float64}
    --compression/-c {,zlib,lzw,lzma,delta,packints,jpeg} = 'zlib'
load-npy
    --file-name/-f !
    --voxel-offset/-t *3 = (0, 0, 0)
    --voxel-size/-s *3 = (1, 1, 1)
    --output-name/-o = 'chunk'
load-png
    --path/-p !
    --output-chunk-name/-o = 'chunk'
    --cutout-offset/-c *3 = (0, 0, 0)
    --voxel-offset/-t *3 = (0, 0, 0)
    --voxel-size/-x *3 = (1, 1, 1)
    --digit-num/-d = 5
    --chunk-size/-s *3
    --dtype
save-pngs
    --input-chunk-name/-i = 'chunk'
    --dtype/-t {uint8,uint16} = 'uint8'
    --output-path/-o = './pngs/'
create-info
    --input-chunk-name/-i = 'chunk'
    --volume-path/-v = 'file://.'
    --channel-num/-c = 1
    --layer-type/-t {image,segmentation}
    --data-type/-d {uint8,uint32,uint64,float32}
    --encoding/-e {raw,jpeg,compressed_segmentation,kempressed,npz,fpzip,npz_uint8} = 'raw'
    --voxel-size/-s *3
    --voxel-offset/-o *3
    --volume-size/-z *3
    --block-size/-b *3 !
    --factor/-f *3 = (2, 2, 2)
    --max-mip/-m = 0
load-precomputed
    --volume-path/-v !
    --mip/-m
    --expand-margin-size/-e *3 ~
    --chunk-start/-s *3
    --chunk-size/-z *3
    --fill-missing/--no-fill-missing = True
    --validate-mip
    --blackout-sections/--no-blackout-sections = False
    --use-https/--use-credential = False
    --output-chunk-name/-o = 'chunk'
save-precomputed
    --volume-path/-v !
    --input-chunk-name/-i = 'chunk'
    --mip/-m
    --upload-log/--no-upload-log = False
    --create-thumbnail/--no-create-thumbnail = False
    --intensity-threshold/-t
    --parallel/-p ~
    --fill-missing/--no-fill = False
load-zarr
    --store/-f !
    --path/-p
    --chunk-start/-s *3
    --chunk-size/-z *3
    --voxel-size/-v *3
    --driver/-b ~
    --output-chunk-name/-o = 'chunk'
save-zarr
    --store/-s !
    --shape *3
    --resolution/-r *3
    --mip/-m
    --dtype
    --infer-dtype/--no-infer-dtype = False
    --chunk-size/-c *3
    --order/-o = 'xyz'
    --input-chunk-name/-i = 'chunk'
inference
    --convnet-model/-m
    --convnet-weight-path/-w
    --input-patch-size/-s *3 !
    --output-patch-size/-z *3
    --output-patch-overlap/-v *3 = (4, 64, 64)
    --output-crop-margin *3
    --patch-num/-n *3
    --num-input-channels = 1
    --num-output-channels/-c = 3
    --dtype/-d {float32,float16} = 'float32'
    --framework/-f {universal,identity,pytorch} = 'universal'
    --batch-size/-b = 1
    --bump {wu,zung} = 'wu'
    --mask-output-chunk/--no-mask-output-chunk = False
    --mask-myelin-threshold/-y
    --augment/--no-augment = False
    --input-chunk-name/-i = 'chunk'
    --output-chunk-name/-o = 'chunk'
crop-margin
    --margin-size/-m *6
    --crop-bbox/--no-crop-bbox = False
    --input-chunk-name/-i = 'chunk'
    --output-chunk-name/-o = 'chunk'
normalize-intensity
    --input-chunk-name/-i = 'chunk'
    --output-chunk-name/-o = 'chunk'
normalize-contrast
    --input-chunk-name/-i = 'chunk'
    --output-chunk-name/-o = 'chunk'
    --lower-clip-fraction/-l = 0.01
    --upper-clip-fraction/-u = 0.01
    --minval = 1
    --maxval = 255
    --per-section/--whole = True
threshold
    --input-chunk-name/-i = 'chunk'
    --output-chunk-name/-o = 'chunk'
    --threshold/-t = 0.5
connected-components
    --input-chunk-name/-i = 'chunk'
    --output-chunk-name/-o = 'chunk'
    --threshold/-t
    --connectivity/-c {6,18,26} = '6'
evaluate-segmentation
    --segmentation-chunk-name/-s = 'chunk'
    --groundtruth-chunk-name/-g = 'groundtruth'
    --output/-o = 'seg_score'
quantize
    --input-chunk-name/-i = 'chunk'
    --output-chunk-name/-o = 'chunk'
    --mode {xy,z} = 'xy'
copy-var
    --from-name/-f = 'chunk'
    --to-name/-t = 'chunk'
    --deep-copy/--shallow-copy = True
delete-var
    --var-names/-v !
multiply
    --input-names/-i = 'chunk'
    --output-names/-o
    --multiplier-name/-m !
mask
    --input-names/-i = 'chunk'
    --output-names/-o
    --volume-path/-v !
    --mip/-m = 5
    --inverse/--no-inverse = False
    --fill-missing/--no-fill-missing = True
skip-task-by-blocks-in-volume
    --volume-path/-v !
    --mip/-m = 0
    --use-https/--use-credential = False
skip-all-zero
    --input-chunk-name/-i = 'chunk'
    --prefix/-p
    --suffix/-s = ''
    --adjust-size/-a
    --chunk-bbox/--task-bbox = True
plugin
    --input-names/-i
    --output-names/-o
    --file/-f ~
    --args/-a
neuroglancer
    --voxel-size/-v *3
    --port/-p
    --inputs/-i = 'chunk'
"""


def rows():
    """Return (command, spellings, nargs, choices, required, default) of every option."""
    found, name = [], ""
    for line in TABLE.strip().splitlines():
        if not line.startswith(" "):
            name = line
            continue
        match = re.fullmatch(r" +(\S+)(?: \*(\d))?(?: \{(.*)\})?(?: (!|~|= .*))?", line)
        spelling, count, choices, rest = match.groups()
        default = ast.literal_eval(rest[2:]) if rest and rest.startswith("=") else None
        found.append((name, spelling, int(count or 1), choices, rest, default))
    return found


@pytest.mark.parametrize(
    ("name", "spelling", "count", "choices", "rest", "default"),
    rows(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_option_is_spelled_and_means_as_ever(name, spelling, count, choices, rest, default):
    """The option has its names, number of values, choices and default."""
    params = [p for p in catalog.load(name).params if isinstance(p, click.Option)]
    words = spelling.split("/")
    by_name = {o: p for p in params for o in (*p.opts, *p.secondary_opts)}
    assert set(words) <= set(by_name), f"{name} has no {set(words) - set(by_name)}"
    (option,) = {id(by_name[word]): by_name[word] for word in words}.values()
    assert option.nargs == count
    if choices is not None:
        assert set(choices.split(",")) <= set(option.type.choices)
    if rest == "~":
        return
    assert option.required == (rest == "!")
    if isinstance(default, bool):
        assert option.is_flag
        # The first spelling is the one that switches on.
        assert words[0] in option.opts
    settings = option.to_info_dict()["default"]
    settings = tuple(settings) if isinstance(settings, list) else settings
    assert settings == default


def test_every_command_of_the_table_exists():
    """The table names commands that exist."""
    assert {row[0] for row in rows()} <= set(catalog.names())
