"""All exceptions that the package raises on purpose, and the public names."""

from __future__ import annotations

import inspect

import pytest

import chunkflow_py
from chunkflow_py import errors
from chunkflow_py.errors import (
    ChunkflowError,
    MissingChunkError,
    MissingExtraError,
    OperatorError,
    VolumeError,
    needs_extra,
)

ALL = [value for value in vars(errors).values() if inspect.isclass(value)]


@pytest.mark.parametrize("error", ALL)
def test_errors_are_ours_and_a_builtin(error: type[Exception]) -> None:
    """Each error is a ChunkflowError and the builtin that the tree names."""
    assert issubclass(error, ChunkflowError)
    if error is not ChunkflowError:
        assert any(base.__module__ == "builtins" for base in error.__mro__[:-3])
    assert error.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (errors.ChunkError("shapes differ"), "inference failed on task 0-1: shapes differ"),
        (ValueError("bad"), "inference failed on task 0-1: ValueError: bad"),
        (KeyboardInterrupt(), "inference failed on task 0-1: KeyboardInterrupt"),
        (
            MemoryError("Unable to allocate 7 TiB"),
            "inference failed on task 0-1: there is not enough memory (unable to allocate 7 TiB); "
            "make the chunk or the tasks smaller",
        ),
        (errors.MissingChunkError("no 'a'"), "inference failed on task 0-1: no 'a'"),
    ],
)
def test_operator_error_is_one_sentence(cause: Exception, text: str) -> None:
    """Operator, task and cause are joined; only a foreign cause is shown with its type."""
    error = OperatorError("inference", "0-1", cause)
    assert str(error) == text
    assert (error.operator, error.task, error.cause) == ("inference", "0-1", cause)


def test_operator_error_without_a_task() -> None:
    """A task without a box is not mentioned."""
    assert str(OperatorError("a", None, ValueError("b"))) == "a failed: ValueError: b"


def test_missing_library_says_what_to_install() -> None:
    """A failed import becomes an error with the pip command, and keeps its cause."""
    with (
        pytest.raises(MissingExtraError) as caught,
        needs_extra("image", "load-png"),
    ):
        import no_such_library  # type: ignore[import-not-found]  # noqa: F401
    assert str(caught.value) == (
        "load-png needs no_such_library, which is not installed; "
        "install it with pip install 'chunkflow_py[image]'"
    )
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_import_error_without_a_name() -> None:
    """The message of a library that fails to load is quoted."""
    error = ImportError("libGL is broken")
    with pytest.raises(MissingExtraError, match="needs libGL is broken"), needs_extra("view", "x"):
        raise error


@pytest.mark.parametrize("name", chunkflow_py.__all__)
def test_public_names(name: str) -> None:
    """Each public name can be imported from the package and is listed by dir()."""
    assert getattr(chunkflow_py, name).__name__ == name
    assert name in dir(chunkflow_py)


def test_unknown_public_name() -> None:
    """An unknown name raises AttributeError, as in any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Chunky'"):
        chunkflow_py.Chunky  # noqa: B018


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("cannot open http://me:geheim@host/em: no", "cannot open http://host/em: no"),
        ("a://me@h/x and b://you:p@h/y; go", "a://h/x and b://h/y; go"),
        ("https://h/em?X-Amz-Signature=abc&b=c; go", "https://h/em; go"),
        ("is that so? no #1 key", "is that so? no #1 key"),
        ("write to me@host, not s3://bucket/em", "write to me@host, not s3://bucket/em"),
    ],
)
def test_no_secrets(said: str, shown: str) -> None:
    """No message contains the password or signature of an address."""
    assert str(VolumeError(said)) == shown
    assert str(MissingChunkError(said)) == shown
    assert str(OperatorError("load", None, VolumeError(said))).endswith(shown)
