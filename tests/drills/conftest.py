"""What all drills share: the input, and what comes of it without faults."""

import pytest

from drills.rig import Drill, make_input


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """The input volume."""
    return make_input(tmp_path_factory.mktemp("input") / "in.zarr")


@pytest.fixture(scope="session")
def expected(source, tmp_path_factory):
    """Return, for a drill, the voxels of its plain line: one process, no plugin, no faults."""
    known = {}

    def of(drill):
        what = drill.source, drill.grid, drill.middle
        if what not in known:
            plain = Drill(
                tmp_path_factory.mktemp("plain"), drill.source, drill.grid, middle=drill.middle
            )
            plain.create_output()
            plain.must(*plain.source_words, *plain.line_words(plain.output, plain=True))
            known[what] = plain.voxels()
        return known[what]

    return of


@pytest.fixture
def make_drill(source, tmp_path):
    """Return what makes drills; whatever they start ends with the test."""
    made = []

    def make(*args, folder=None, source=source, **keywords):
        drill = Drill(folder or tmp_path, source, *args, **keywords)
        made.append(drill)
        return drill

    yield make
    for drill in made:
        drill.close()
