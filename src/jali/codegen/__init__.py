"""From a traced site function to a compiled kernel: types, trace, IR, passes, C++ text, compiler, cache."""
