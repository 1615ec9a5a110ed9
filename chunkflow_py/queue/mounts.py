"""Which file system a path is on, as far as it matters to locks and shared memory."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

MOUNTS = Path("/proc/self/mountinfo")

# Their files are seen by several machines, which do not share memory; some do not lock either.
SHARED = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "panfs", "pvfs2", "smb", "smb2", "smb3", "smbfs", "wekafs"}
    | {"fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone"}
    | {"fuse.s3fs", "fuse.sshfs"}
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


def file_system(path: Path, mounts: str) -> str:
    r"""Return the type of the file system that holds *path*, such as ``ext4`` or ``nfs4``.

    Args:
        path: absolute, without symbolic links.
        mounts: content of ``/proc/self/mountinfo``: a line a mount, whose fifth field is the mount
            point (with blanks as ``\040``), and whose first field after `` - `` is the type.
    """
    longest, found = -1, "unknown"
    for line in mounts.splitlines():
        fields, separator, source = line.partition(" - ")
        if not separator or len(fields.split(" ")) < 5:
            continue
        point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields.split(" ")[4])
        depth = len(PurePosixPath(point).parts)
        # Of two mounts on one point the later hides the earlier.
        if depth >= longest and path.is_relative_to(point):
            longest, found = depth, source.split(" ")[0]
    return found


def shared_file_system(path: Path) -> str | None:
    """Return the type of the file system of *path* if machines share it, else ``None``."""
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # not Linux: nothing is known
        return None
    found = file_system(path.resolve(), mounts)
    return found if found in SHARED else None
