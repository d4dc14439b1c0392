"""Reading the kernel: one file per interface, bounded reads, units converted at the edge.

Above this room there are only bytes, nanoseconds and counts. A reading that cannot be had raises ReadingError with
the reason; the caller turns it into a Gap.
"""
