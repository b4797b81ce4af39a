/*
 * nvc.h: the names of NVC's published code, for programs that were prepared for it; they are those
 * of its paper's Table 1, or these. See terrace_crash.h.
 */
#ifndef TERRACE_NVC_H
#define TERRACE_NVC_H

#include "terrace_crash.h"

#define crucial_data(pointer, type, count) critical_data(pointer, type, count)

static inline void flush_whole_cache(void)
{
    write_back_invalidate_cache();
}

static inline void clflush(const void *pointer)
{
    flush_cache_line(pointer);
}

static inline void clwb(const void *pointer)
{
    cache_line_write_back(pointer);
}

#endif
