"""Amounts in words: things that are counted, bytes and seconds with three or four digits and the unit that fits."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """So many of a thing, whose plural ends in s: 1 rank, 2 ranks."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size_text(n: float) -> str:
    """Bytes in words: 512 B, 16 KiB, 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024 or unit == "GiB":
            break
        n /= 1024
    return f"{n:.4g} {unit}"


def time_text(seconds: float) -> str:
    """Seconds in words: 12 us, 3.4 ms, 1.2 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds} s"
