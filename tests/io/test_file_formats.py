"""Entries of file formats can be told apart, by content and by name."""

from __future__ import annotations

from itertools import product

from jali.io.formats import formats, writers

BEGINNINGS = {
    "nersc": b"BEGIN_HEADER\n",
    "lime": bytes.fromhex("456789ab0001"),
    "milc": (20103).to_bytes(4, "big"),
    "unknown": b"something else",
    "empty": b"",
}


def test_a_beginning_belongs_to_one_row() -> None:
    assert {"nersc", "lime", "milc"} <= {entry.name for entry in formats()}
    for entry, (name, head) in product(formats(), BEGINNINGS.items()):
        assert entry.is_one(head) == (entry.name == name)


def test_a_name_of_a_file_belongs_to_one_writer() -> None:
    for part in ("endings", "beginnings"):
        found = [text for writer in writers().values() for text in getattr(writer, part)]
        assert len(found) == len(set(found)) > 0
