"""Threads as vector lanes: kernels of the loop engine that loop, as functions that run a number of adjacent threads
together, loops outside and threads inside.

The loop over the grid runs one thread after another, and a compiler vectorises it only if it can unroll or exchange the
loops of the kernel. The second form of a kernel, `NAME_in_lanes`, runs WIDTH threads that are consecutive in x. Its
loops are those of the kernel, and the statements between them stand in lane loops, `for (lane = 0; lane < WIDTH; ...)`,
which every compiler vectorises. Uniform variables, among them the counters of these loops, exist once. Varying ones
that are used in several lane loops are kept in arrays of WIDTH elements; a lane loop copies those that it mentions to
variables of their own names and back, so that the statements keep their text, and each thread its operations in their
order. Results are those of the loop over the grid, bit for bit.

Where threads diverge, arrays of masks tell which lanes take part: in a branch that has loops inside, in a loop that lanes
leave one by one, in the rest of one of its iterations, and after a `return`. A loop ends when no lane is left, and what no
lane does is passed over. Inside of a lane loop, what only changes variables is computed by all lanes, and those that do
not take part keep the old values; loads and stores are left to the lanes that take part. So there is no control flow but
around these, and compilers make vector code of it.

An index that grows by a fixed number from thread to thread may wrap around in 32 bits. Each lane loop computes its indices
for the first threads and the last one; if none wraps in between, the accesses are contiguous for the compiler, or at fixed
distances. Else the form returns false if nothing has been written yet, and the threads run one by one; after a store the
statements run in a copy of the loop as they are written.

Threads that a guard (`if (i >= n) return;`) would end are looked for first, before anything is written: the form then
returns false, and the threads run one by one, as do those that are left over at the end of a row.

analysis.py decides which kernels take the form, form.py writes it: lane_loop.py its loops over the lanes, predicated.py
the statements in them. masks.py names the masks.
"""
