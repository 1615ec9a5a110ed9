"""What a new user does first: help, one line, and a line that needs what is not installed."""

import os
import subprocess

LINE = (
    "create-chunk --size 24 48 48 --pattern sin inference --input-patch-size 12 24 24 "
    "--output-patch-overlap 4 8 8 --framework identity save-h5 --file-name identity.h5"
)
DOCTOR = "doctor --only python,packages,extras,disk,allocator"
# A line that needs an extra, and the extra.
LACKING = {
    "create-chunk save-zarr --store out.zarr": "zarr",
    "create-chunk save-tif -f out.tif": "image",
    "create-chunk save-precomputed -v precomputed://s3://bucket/em": "cloud",
    "create-chunk --dtype uint32 connected-components save-h5 -f out.h5": "segmentation",
}


def say(chunkflow, line, folder, code=0):
    """Run a line in *folder*; return what it printed.

    Args:
        chunkflow: words of the command that is the program.
        line: what follows them.
        folder: to run in.
        code: with which it has to end.
    """
    done = subprocess.run(
        [*chunkflow, *line.split()],
        cwd=folder,
        env=os.environ | {"HOME": str(folder), "AWS_EC2_METADATA_DISABLED": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, f"{line} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def check_first_minutes(chunkflow, folder):
    """Do what a new user does first, where no extra is installed; return what was tried.

    Args:
        chunkflow: words of the command that is the program.
        folder: an empty one.
    """
    assert "create-chunk" in say(chunkflow, "--help", folder)
    say(chunkflow, LINE, folder)
    assert (folder / "identity.h5").stat().st_size > 24 * 48 * 48
    assert "ok       packages: chunkflow_py" in say(chunkflow, DOCTOR, folder)
    for line, extra in LACKING.items():
        said = say(chunkflow, line, folder, code=1)
        assert f"pip install 'chunkflow_py[{extra}]'" in said, f"{line}:\n{said}"
        assert "Traceback" not in said, said
    return "help, inference, save-h5, doctor, " + ", ".join(f"no [{e}]" for e in LACKING.values())
