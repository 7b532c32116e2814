"""`jali bench compare A B`: how much faster or slower one commit of jali is than another, case by case.

Both are checked out and built once, below the kernel cache (`checkouts`). For each case two processes, one for each side, take
turns on the same cores, since a shared machine does not stay the same for long (`pairs`, `worker`); this is done with several
fresh pairs, because the placement of pages matters as well. Results are a file that grows line by line, so that a comparison
can be done in parts (`record`). Ratios have bootstrap intervals, and a case is lost only where the whole interval is
(`intervals`). `cases` has the measured functions. Both sides run the same file, that of the jali that compares: it keeps to
functions that have long been public, and chooses by what a side has (`first_of`) where a name differs between them.
"""
