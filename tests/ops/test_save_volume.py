"""Tests of save-volume that are not shared with load-volume: what is refused."""

import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.volume import open_volume


def run(*words, code=0):
    """Run a line and return what it printed."""
    result = CliRunner().invoke(cli, ["--quiet", *(p for w in words for p in str(w).split())])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("-v out", 1, "names no format; use precomputed://out or zarr://out"),
        ("-v zarr://out --no-create", 1, "leave out --no-create"),
        ("-v zarr://out --dtype nonsense", 2, "--dtype nonsense is not a type"),
        ("-v zarr://out --dtype float128", 2, "--dtype float128 is not a type"),
        ("-v zarr://https://host.invalid/out", 1, "web servers can only be read"),
        ("-v zarr://out --shard-size 8 8 8", 2, "needs a block size"),
        ("-v zarr://out -b 6 6 6 --shard-size 8 8 8", 2, "try (12, 12, 12)"),
        ("-v zarr://out --time 1", 2, "the pipeline writes time index 1"),
        ("-v zarr://out --encoding jpeg", 1, "jpeg"),
        ("-v precomputed://out --encoding zstd", 1, "zstd"),
        ("-v n5://out", 1, "read only"),
        ("-v", 2, "requires an argument"),
    ],
)
def test_bad_options(words, code, text, tmp_path, monkeypatch):
    """What cannot work is one sentence and an exit code, and makes nothing."""
    monkeypatch.chdir(tmp_path)
    output = run("create-chunk save-volume", words, code=code)
    assert text in output
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []


def test_names_of_channels_go_with_them(tmp_path, monkeypatch):
    """Where a line keeps channels, a new zarr volume has their names; of chosen ones theirs."""
    monkeypatch.chdir(tmp_path)
    run("create-volume -v zarr://a -z 4 8 8 -c 2 -b 4 8 8 --data-type uint8 -s 1 1 1",
        "--channel-names dapi,gfp")  # fmt: skip
    run("load-volume -v a median-filter save-volume -v zarr://all")
    run("load-volume -v a --channels 1 save-zarr -s plain --plain")
    run("load-volume -v a channel-voting save-zarr -s labels")
    names = {n: open_volume(n).channel_names for n in ("all", "plain", "labels")}
    assert names == {"all": ("dapi", "gfp"), "plain": ("gfp",), "labels": ()}
    run("load-volume -v a save-volume -v precomputed://other")
