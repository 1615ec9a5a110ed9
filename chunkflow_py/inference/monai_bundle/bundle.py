"""Read a MONAI bundle: sizes, normalisation, activation, and its network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError
from chunkflow_py.inference.monai_bundle.bundle_config import ConfigDocument
from chunkflow_py.inference.monai_bundle.bundle_files import METADATA, BundleFiles
from chunkflow_py.inference.monai_bundle.bundle_network import (
    STATE_DICT,
    TORCHSCRIPT,
    BundleNetwork,
    choose_weights,
    load_network,
)
from chunkflow_py.inference.monai_bundle.bundle_orientation import network_axes
from chunkflow_py.inference.monai_bundle.bundle_transforms import (
    TransformList,
    postprocessing,
    preprocessing,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    import torch

    from chunkflow_py.inference.monai_bundle.bundle_config import ConfigField
    from chunkflow_py.inference.monai_bundle.bundle_network import WeightsKind
    from chunkflow_py.inference.monai_bundle.bundle_transforms import (
        Postprocessing,
        Preprocessing,
    )
    from chunkflow_py.inference.patch_grid import Pad

_INFERERS = ("SlidingWindowInferer", "SlidingWindowInfererAdapt")
_PADS: dict[str, Pad] = {"constant": "zero", "reflect": "reflect", "replicate": "edge"}
_LARGEST_PATCH = 1 << 20


@dataclass(frozen=True)
class SlidingWindow:
    """The sliding window of a bundle; sizes have the order of the network's axes.

    Attributes:
        size: size of a patch, voxels.
        shares: overlap of neighbouring patches, as a fraction of the patch size along each axis.
        batch_size: number of patches in one forward pass.
        bump: value of the option ``--bump`` of `inference` (blending window).
        pad: value of the option ``--pad`` of `inference` (padding).
    """

    size: tuple[int, int, int]
    shares: tuple[float, float, float]
    batch_size: int
    bump: str
    pad: Pad


@dataclass(frozen=True)
class BundleProcessing:
    """Settings that the inference config of a bundle contains, except those of the network.

    Attributes:
        window: the sliding window, or ``None`` if the network takes whole images.
        before: settings that replace the transforms before the network.
        after: settings that replace the transforms after the network.
    """

    window: SlidingWindow | None
    before: Preprocessing
    after: Postprocessing


@dataclass(frozen=True)
class Bundle:
    """A MONAI bundle.

    Attributes:
        path: path of the bundle, as the user gave it.
        weights: which weights are used: ``state_dict`` or ``torchscript``.
        num_input_channels: number of channels of the image.
        num_output_channels: number of channels of the output.
    """

    path: str
    weights: WeightsKind
    num_input_channels: int
    num_output_channels: int
    _files: BundleFiles
    _config_name: str
    _document: ConfigDocument

    @property
    def is_program(self) -> bool:
        """Whether the network is a compiled program, which cannot be changed or converted."""
        return self.weights == "torchscript"

    @property
    def checksum(self) -> str:
        """SHA-256 of the config and of the weights, 64 hexadecimal digits."""
        weights = TORCHSCRIPT if self.is_program else STATE_DICT
        return self._files.checksum(self._config_name, weights)

    def processing(self, skipped: Collection[str] = ()) -> BundleProcessing:
        """Return the sliding window, and the settings that replace the transforms.

        Args:
            skipped: names of transforms to leave out.

        Raises:
            ModelError: a transform or the inferer is not supported; the message names the field.
            OptionError: a name in *skipped* is not the name of a transform of the bundle.
        """
        root = self._document.root
        lists = {}
        names: list[str] = []
        for key in ("preprocessing", "postprocessing"):
            lists[key] = TransformList()
            if not root[key]:
                root[key].refuse(
                    "without it, the transforms of the network are unknown; add a Compose, with "
                    "an empty list of transforms if there are none"
                )
            lists[key].collect(root[key], skipped)
            names += lists[key].names
        for name in skipped:
            if name not in names:
                msg = (
                    f"--skip-transforms names {name}, but the transforms of MONAI bundle "
                    f"{self.path} are {', '.join(dict.fromkeys(names)) or 'none'}; correct the name"
                )
                raise OptionError(msg)
        before = preprocessing(lists["preprocessing"].fields, self.path, self.num_input_channels)
        window = _sliding_window(root["inferer"])
        return BundleProcessing(window, before, postprocessing(lists["postprocessing"].fields))

    def load(
        self, *, trust_weights: bool = False, orientations: tuple[str, str] | None = None
    ) -> torch.nn.Module:
        """Return the network, on the CPU, in evaluation mode.

        The network takes a normalised batch, (n, c, z, y, x) float32, and returns an array with the
        same size along z, y and x. The transforms after the network, such as an activation, are not
        applied.

        Args:
            trust_weights: unpickle all objects in the weight file, even those that can run code.
            orientations: two orientation codes, such as ``RAS``: the code that the network expects,
                and the code of the image's axes x, y and z (default: the codes are equal).

        Raises:
            ModelError: the network cannot be made, or the weights do not match the network.
            MissingExtraError: the class of the network is in MONAI, and MONAI is not installed.
        """
        definition = self._document.root["network_def"]
        network = load_network(self.weights, definition, self._files, trust_weights=trust_weights)
        axes = network_axes(*(orientations or (None, None)))
        return BundleNetwork(network, axes, self.path).eval()


def read_bundle(path: str) -> Bundle:
    """Read the configs of a bundle; `Bundle.load` then reads the weights.

    Args:
        path: path of a folder or of a ``.zip`` file.

    Raises:
        ModelError: *path* is not a bundle, or the network is not supported. In the second case,
            the message names the field of the config.
        MissingExtraError: the config is YAML, and PyYAML is not installed.
    """
    files = BundleFiles(path)
    metadata = files.metadata()
    name, content = files.inference_config()
    document = ConfigDocument(content, metadata, name=name, bundle=path)
    definition = document.root["network_def"]
    described = ConfigDocument(metadata, {}, name=METADATA, bundle=path).root
    return Bundle(
        path=path,
        weights=choose_weights(definition, files),
        num_input_channels=_channels(described, definition, "inputs", "in_channels"),
        num_output_channels=_channels(described, definition, "outputs", "out_channels"),
        _files=files,
        _config_name=name,
        _document=document,
    )


def _channels(described: ConfigField, definition: ConfigField, side: str, argument: str) -> int:
    # Metadata and network definition must agree.
    tensors = described["network_data_format"][side]
    if not isinstance(tensors.value, dict) or len(tensors.value) != 1:
        what = "input" if side == "inputs" else "output"
        tensors.refuse(f"the network must have exactly one {what}")
    here = tensors[next(iter(tensors.value))]["num_channels"]
    number = here.integer()
    if not 1 <= number <= 4096:
        here.refuse("it must be 1 to 4096")
    other = definition[argument].value
    if isinstance(other, int) and other != number:
        here.refuse(f"{argument} of the network is {other}; correct one of them")
    return number


def _sliding_window(here: ConfigField) -> SlidingWindow | None:
    if here.target == "SimpleInferer":
        return None
    if here.target not in _INFERERS:
        (here["_target_"] if here["_target_"] else here).refuse(
            f"supported inferers are {', '.join(_INFERERS)} and SimpleInferer; use one of them"
        )
    size = _three(here["roi_size"], [each.integer() for each in _items(here["roi_size"])])
    if min(size) < 1 or max(size) > _LARGEST_PATCH:
        here["roi_size"].refuse(
            f"each size must be 1 to {_LARGEST_PATCH}; a patch cannot span the whole image, "
            "because a task loads only a chunk of the image; write the patch size that the network "
            "was trained with"
        )
    shares = (
        _three(here["overlap"], [each.number() for each in _items(here["overlap"])])
        if here["overlap"]
        else (0.25, 0.25, 0.25)
    )
    if min(shares) < 0 or max(shares) >= 1:
        here["overlap"].refuse("it must be at least 0 and below 1, a fraction of the patch")
    batch = here["sw_batch_size"].integer() if here["sw_batch_size"] else 1
    if not 1 <= batch <= 4096:
        here["sw_batch_size"].refuse("it must be 1 to 4096")
    return SlidingWindow(
        size,
        shares,
        batch,
        _bump(here),
        _pad(here),
    )


def _items(here: ConfigField) -> list[ConfigField]:
    return list(here) if isinstance(here.value, list) else [here]


def _three(here: ConfigField, numbers: list[Any]) -> tuple[Any, Any, Any]:
    numbers = numbers * 3 if len(numbers) == 1 else numbers
    if len(numbers) != 3:
        here.refuse("it must be one number or three: only networks of 3D images are supported")
    return numbers[0], numbers[1], numbers[2]


def _bump(here: ConfigField) -> str:
    mode = here["mode"].text().lower() if here["mode"] else "constant"
    if mode == "constant":
        return "constant"
    if mode != "gaussian":
        here["mode"].refuse("it must be constant or gaussian")
    scales = here["sigma_scale"].numbers() if here["sigma_scale"] else (0.125,)
    if set(scales) != {0.125}:
        here["sigma_scale"].refuse("only 0.125, MONAI's default, is supported; change it to 0.125")
    return "gaussian-monai"


def _pad(here: ConfigField) -> Pad:
    mode = here["padding_mode"].text().lower() if here["padding_mode"] else "constant"
    if mode not in _PADS:
        here["padding_mode"].refuse(f"it must be one of {', '.join(_PADS)}")
    if here["cval"].number(0) != 0:
        here["cval"].refuse("only padding by 0 is supported; change it to 0")
    return _PADS[mode]
