"""Where a volume is: what a person writes, taken apart into format, protocol and path.

| written                                | format      | protocol | path           |
|----------------------------------------|-------------|----------|----------------|
| ``em``, ``/data/em``, ``file://em``    | by its files | file    | ``/data/em``   |
| ``precomputed://file:///data/em``      | precomputed | file     | ``/data/em``   |
| ``gs://bucket/em``                     | precomputed | gs       | ``bucket/em``  |
| ``zarr://em.zarr``, ``zarr3://file://em.zarr`` | zarr | file    | ``/data/em.zarr`` |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from chunkflow_py.errors import VolumeError

# scheme -> format; a format is a module of this package
FORMATS = {"precomputed": "precomputed", "zarr": "zarr", "zarr2": "zarr", "zarr3": "zarr"}
PROTOCOLS = ("file", "gs", "s3", "http", "https", "mem")


@dataclass(frozen=True)
class Location:
    """A place and, if the address says it, the format of what lies there.

    Attributes:
        url: as it was written, for messages.
        format: ``precomputed`` or ``zarr``, or ``None`` if it has to be found out.
        protocol: one of `PROTOCOLS`.
        path: an absolute path for ``file``, else what follows ``://``; without a final slash.
    """

    url: str
    format: str | None
    protocol: str
    path: str

    @classmethod
    def parse(cls, url: str) -> Location:
        """Take an address apart.

        Raises:
            VolumeError: it is empty or names a format or protocol that is not known.
        """
        kind, rest = None, url
        scheme, separator, after = url.partition("://")
        if separator and scheme in FORMATS:
            kind, rest = FORMATS[scheme], after
            scheme, separator, after = rest.partition("://")
        if separator and scheme not in PROTOCOLS:
            raise VolumeError(_unknown(scheme, url))
        protocol, path = (scheme, after) if separator else ("file", rest)
        if not path.strip("/") and path != "/":
            msg = f"{url!r} names no volume; write a path, such as file:///data/em"
            raise VolumeError(msg)
        if protocol == "file":
            path = str(Path(path).expanduser().absolute())
        elif kind is None:
            kind = "precomputed"  # as cloud-volume takes gs://bucket/em
        return cls(url, kind, protocol, path.rstrip("/") or "/")

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return self.protocol == "file"

    @property
    def folder(self) -> Path:
        """The local folder."""
        return Path(self.path)

    @property
    def address(self) -> str:
        """Protocol and path, as cloud-files wants them."""
        return f"{self.protocol}://{self.path}"

    def __truediv__(self, name: str) -> Location:
        """Return the place *name* below this one."""
        url = f"{self.url.rstrip('/')}/{name}"
        return replace(self, url=url, path=f"{self.path.rstrip('/')}/{name.strip('/')}")

    def __str__(self) -> str:
        """Return what was written."""
        return self.url


def _unknown(scheme: str, url: str) -> str:
    if scheme == "n5":
        return (
            f"cannot open {url}: N5 volumes are not supported yet; "
            "convert it to zarr or precomputed"
        )
    known = (*FORMATS, *PROTOCOLS)
    near = get_close_matches(scheme, known, n=1, cutoff=0.4)
    words = f"did you mean {near[0]}://?" if near else f"known are {', '.join(known)}"
    return f"cannot open {url}: unknown scheme {scheme}://; {words}"
