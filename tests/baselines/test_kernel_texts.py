"""The kernels of 200 programs have the texts that were recorded, with the identifiers renamed that `renamed.toml` lists."""

from __future__ import annotations

import difflib
import hashlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import kernel_texts
from kernel_texts import TARGETS, WORD, normalised, renamed


@pytest.fixture(scope="module")
def recorded():
    return kernel_texts.recorded()


@pytest.fixture(scope="module")
def pairs():
    return kernel_texts.renamed_identifiers()


def test_the_recorded_texts_are_those_of_the_checksums(recorded):
    assert len(recorded) == 200
    assert kernel_texts.checksums(recorded) == kernel_texts.recorded_checksums()


def test_the_renaming_is_one_of_identifiers_and_can_be_undone(recorded, pairs):
    words = {
        word
        for program in recorded.values()
        for texts in program.values()
        for t in texts
        for word in WORD.findall(t)
    }
    for old, new in pairs.items():
        assert all(map(WORD.fullmatch, (old, new))), (old, new)
        assert old in words, f"{old} is in no recorded text"
        assert new not in words or new in pairs, (
            f"{new}, the new name of {old}, is another word of the recorded texts"
        )
    assert len(set(pairs.values())) == len(pairs), "two identifiers have one new name"


def test_kernels_have_the_recorded_texts(recorded, pairs):
    written = kernel_texts.written()
    assert list(written) == list(recorded)
    differing = [
        (name, target)
        for name in recorded
        for target in TARGETS
        if [renamed(text, pairs) for text in recorded[name][target]] != written[name][target]
    ]
    if differing:
        name, target = differing[0]
        expected = "".join(renamed(text, pairs) for text in recorded[name][target]).splitlines()
        found = "".join(written[name][target]).splitlines()
        difference = list(
            difflib.unified_diff(expected, found, "recorded and renamed", "written", lineterm="", n=1)
        )
        shown = "\n".join(difference[:60])
        pytest.fail(
            f"{len(differing)} of {2 * len(recorded)} differ; the first is {name} for {target}:\n{shown}"
        )


def test_texts_are_compared_without_comments_and_renamed_as_whole_words_at_once():
    text = normalised(
        "// a kernel\nreal load_x = load(x);  // of f\n\n  x = load_x; /* two\nlines */ put(x);\n"
    )
    assert text == "real load_x = load(x);\n  x = load_x;  put(x);\n"
    assert (
        renamed(text, {"load": "x", "x": "load"}) == "real load_x = x(load);\n  load = load_x;  put(load);\n"
    )


def test_a_checksum_says_which_text_it_is_of():
    texts = {"a": {"cpu": ["one\n", "two\n"], "cuda": ["one\ntwo\n"]}}
    sums = kernel_texts.checksums(texts)["a"]
    assert sums["cpu"] != sums["cuda"]
    assert sums["cuda"] == hashlib.sha256(b"one\ntwo\n").hexdigest()
