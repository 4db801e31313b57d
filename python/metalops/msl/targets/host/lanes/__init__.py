"""Threads as vector lanes: kernels of the loop engine that loop, as functions that run a number of adjacent threads
together, loops outside and threads inside.

The loop over the grid runs one thread after another, and a compiler vectorises it only if it can unroll or exchange the
loops of the kernel. The second form of a kernel, `NAME_in_lanes`, runs WIDTH threads that are consecutive in x. Its
loops are those of the kernel, and the statements between them stand in lane loops, `for (lane = 0; lane < WIDTH; ...)`,
which every compiler vectorises. Uniform variables, among them the counters of these loops, exist once. Varying ones
that are used in several lane loops are kept in arrays of WIDTH elements; a lane loop copies those that it mentions to
variables of their own names and back, so that the statements keep their text, and each thread its operations in their
order. Results are those of the loop over the grid, bit for bit.

An index that grows by one from thread to thread may wrap around in 32 bits. Each lane loop computes its indices for the
first and the last thread; if none wraps in between, the accesses are contiguous for the compiler, else the statements
run in a copy of the loop as they are written.

Threads that a guard (`if (i >= n) return;`) would end are looked for first, before anything is written: the form then
returns false, and the threads run one by one, as do those that are left over at the end of a row.

analysis.py decides which kernels take the form, form.py writes it.
"""
