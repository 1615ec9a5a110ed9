"""From options of the command line to settings and arguments of a backend."""

import pytest

from chunkflow_py.errors import OptionError
from chunkflow_py.inference.command_options import backend_arguments, engine_settings
from chunkflow_py.ops.inference import command


def options(*words):
    """Return the options of a command line, by their Python names."""
    words = ["-f", "identity", "-s", "4", "8", "8", "-v", "1", "2", "2", *map(str, words)]
    with command.make_context("inference", words) as context:
        return context.params


def test_defaults_are_those_of_the_settings():
    """Without options: all of the patch is kept, dtype normalisation, one unnamed output."""
    made = engine_settings(options())
    assert made.geometry.output_patch_size == made.geometry.input_patch_size == (4, 8, 8)
    assert (made.batch_size, made.num_output_channels, made.outputs) == (1, 3, ())
    assert (made.normalizer.method, made.output_kind, made.skip_empty) == ("dtype", None, False)


def test_outputs_are_put_together():
    """Names, channels and kinds belong together in order; channels are added up."""
    words = ["--output-names", "aff,m", "--output-channels", "3,2"]
    made = engine_settings(options(*words))
    assert made.outputs == (("aff", 3, "affinity"), ("m", 2, "probability"))
    assert made.num_output_channels == 5
    made = engine_settings(options(*words, "--output-kind", "vector,embedding"))
    assert [output.kind for output in made.outputs] == ["vector", "embedding"]


def test_one_named_output_is_one_of_several():
    """A single name works like many."""
    made = engine_settings(options("--output-names", "a", "--output-channels", 2))
    assert made.outputs == (("a", 2, "probability"),)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--output-channels", 3], "needs the names of the outputs; add --output-names"),
        (["--output-kind", "logit,logit"], "needs the names of the outputs; add --output-names"),
        (["--output-kind", "image"], "'image' is not one of probability, affinity, logit"),
        (
            ["--output-names", "a,b", "--output-channels", 3],
            "--output-names lists 2 outputs, --output-channels lists 1 ",
        ),
    ],
)
def test_lists_that_do_not_belong_together_are_refused(words, said):
    """Each output has a name, a number of channels and a kind."""
    with pytest.raises(OptionError, match=said):
        engine_settings(options(*words))


@pytest.mark.parametrize("method", [[], ["--normalize", "zscore"]])
def test_mean_and_deviation_imply_zscore(method):
    """Numbers without --normalize mean zscore: no other method uses them."""
    given = [*method, "--normalize-mean", "131.2,-9", "--normalize-std", " 24.9,1e3"]
    made = engine_settings(options(*given, "--num-input-channels", 2)).normalizer
    assert (made.method, made.shift, made.divisor) == ("zscore", (131.2, -9), (24.9, 1000))


def test_options_reach_the_backend_as_its_arguments():
    """Model, device and precision reach the backend under the names of its arguments."""
    given = options("--dtype", "float16", "--no-cuda-graphs", "--spatial-dims", 2, "-w", "w.pt")
    made = backend_arguments(given)
    assert (made["framework"], made["dtype"], made["cuda_graphs"]) == ("identity", "float16", False)
    assert (made["spatial_dims"], made["weights"], made["model"]) == (2, "w.pt", None)


def test_an_option_with_the_name_of_a_setting_or_argument_sets_it():
    """No list of names has to be kept: a field or a parameter is enough."""
    given = options("--tf32", "--compile", "--lower-batch", "--batch-size", 3, "--bump", "zung")
    arguments, settings = backend_arguments(given), engine_settings(given)
    assert (arguments["tf32"], arguments["compile"], arguments["device"]) == (True, True, "auto")
    assert "batch_size" not in arguments
    assert (settings.lower_batch, settings.batch_size, settings.bump) == (True, 3, "zung")
