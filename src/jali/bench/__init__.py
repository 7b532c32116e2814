"""Measurements of jali beside what else does the same work; `jali bench` and the scripts of `benchmarks/` use them."""
