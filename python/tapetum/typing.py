"""Types of arguments and results, for annotations of one's own functions. At run time they are text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tapetum._tapetum import Pipeline

__all__ = ["ByteSize", "Key", "OnError", "PipelineLike", "PixelSize"]

#: Keys and values: bytes, a buffer of them, or text, which is kept as UTF-8.
Key: TypeAlias = "bytes | str | Buffer"
#: Bytes: a number, or text such as "64MiB".
ByteSize: TypeAlias = "int | str"
#: Pixels: of both sides, or (height, width) as in torchvision.
PixelSize: TypeAlias = "int | tuple[int, int]"
#: A pipeline, or its text.
PipelineLike: TypeAlias = "Pipeline | str"
#: What becomes of a picture that fails.
OnError: TypeAlias = Literal["raise", "skip", "fill"]
