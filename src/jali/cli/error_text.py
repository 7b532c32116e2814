"""The text of an exception for a command: each message in its line, with the command's name in front."""

from __future__ import annotations

from collections.abc import Iterable

from jali.errors import FileFormatError
from jali.files import CONTROL, RECORD, shown


def error_text(error: Exception) -> str:
    """The message of an error; for the system's errors without their number. `RECORD` separates several messages."""
    if isinstance(error, MemoryError):
        return f"there is not enough memory: {error}" if str(error) else "there is not enough memory"
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{shown(error.filename)}: {error.strerror}"


def several(errors: Iterable[Exception]) -> FileFormatError:
    """One error with the messages of all."""
    return FileFormatError(RECORD.join(map(error_text, errors)))


def error_lines(error: Exception, speaker: str) -> str:
    """What is printed of an error: `speaker` in front of each of its messages."""
    texts = [error_text(error)]
    if isinstance(error, FileFormatError):  # names of files and what stood in them
        texts = [message.translate(CONTROL) for message in texts[0].split(RECORD)]
    return "\n".join(f"{speaker}: {text}" for text in texts)
