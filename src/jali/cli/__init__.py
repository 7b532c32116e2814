"""The `jali` command: run, measure, convert, plan, simulate, machine, bench, info. Each command is a module that is imported when it is asked for."""
