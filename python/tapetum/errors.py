"""The package's exceptions: those of the native module, or equal ones where the package has none."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

#: Whether the package has its native module: the embedded store, and pictures.
HAS_NATIVE = importlib.util.find_spec("tapetum._tapetum") is not None

if TYPE_CHECKING or HAS_NATIVE:
    from tapetum._tapetum import ClosedError, DeadlineError, Error, PipelineError, QueryError
else:

    class Error(Exception):
        """What the store says; its text tells what to do."""

    class PipelineError(Error):
        """A pipeline is wrong, or failed at a stage."""

    class DeadlineError(PipelineError):
        """A picture was not decoded within the deadline of its pipeline."""

    class ClosedError(Error):
        """The store was closed, or belongs to another process."""

    class QueryError(Error):
        """A query's text is wrong: at ``column``, from 1 on, of the argument ``clause``, where ``word`` stands; no word, where one is missing."""

    for _class in (Error, PipelineError, DeadlineError, ClosedError, QueryError):
        # Pickle and tracebacks name them as those of the native module.
        _class.__module__ = "tapetum"


def query_error(text: str, clause: str, column: int, word: str) -> QueryError:
    """A ``QueryError`` with its place."""
    error = QueryError(text)
    error.clause, error.column, error.word = clause, column, word
    return error


__all__ = ["HAS_NATIVE", "ClosedError", "DeadlineError", "Error", "PipelineError", "QueryError", "query_error"]
