"""The first ten minutes without extras, as far as can be tried without a new environment."""

import sys
import tomllib
from pathlib import Path

import pytest

from install import try_install
from install.first_minutes import check_first_minutes

ROOT = Path(__file__).parents[2]
# What the extras bring cannot be imported.
WITHOUT_EXTRAS = """
import sys
names = set(sys.argv.pop(1).split(","))
class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refusal())
from chunkflow_py.cli.main import main
main()
"""
MODULES = (
    "PIL,boto3,botocore,cc3d,cloudvolume,dask,distributed,fastremap,fill_voids,google,"
    "google_crc32c,imagecodecs,kimimaro,matplotlib,mrcfile,napari,neuroglancer,nrrd,numcodecs,"
    "obstore,onnx,onnxruntime,onnxscript,openvino,requests,scipy,skimage,tensorstore,tifffile,"
    "urllib3,waterz,yaml,zarr,zfpy,zlib_ng,zmesh"
)


def test_first_minutes_need_no_extra(tmp_path):
    """Help and a first line work without any extra; what lacks one names the exact pip line."""
    check_first_minutes([sys.executable, "-c", WITHOUT_EXTRAS, MODULES], tmp_path)


@pytest.mark.parametrize("text", ["h5py>=3.11", "torch>=2.11,<3", "zfpy>=1.0,!=1.0.1.post0"])
def test_lowest_version_is_the_lower_bound(text):
    """What `make install-test` calls lowest is what pyproject.toml allows at least."""
    name, _, version = text.partition(",")[0].partition(">=")
    assert try_install.lowest([text]) == [f"{name}=={version}"]


def test_every_core_dependency_has_a_lower_bound():
    """No core dependency may be of any age: what is allowed can be tried."""
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert len(try_install.lowest(said)) == len(said)
