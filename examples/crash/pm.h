/*
 * What the persistent structures share: a pool of memory that is in every image, and persist().
 * A program that is restarted from an image checks it; its exit status says whether it is whole.
 */
#ifndef PM_H
#define PM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terrace_crash.h"

/* A defect that is compiled in; 0 for none. */
#ifndef BUG
#define BUG 0
#endif

#define PM_LINE 64

static inline void pm_fence(void)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

/* Flushes the lines of these bytes; they are persistent after the next fence. */
static inline void pm_flush(const void *pointer, size_t bytes)
{
    uintptr_t line = (uintptr_t)pointer & ~(uintptr_t)(PM_LINE - 1);
    for (; line < (uintptr_t)pointer + bytes; line += PM_LINE)
        cache_line_write_back((const void *)line);
}

static inline void pm_persist(const void *pointer, size_t bytes)
{
    pm_flush(pointer, bytes);
    pm_fence();
}

/* Stores that the compiler neither moves nor joins. */
#define PM_SET(place, value) (*(volatile __typeof__(place) *)&(place) = (value))

/* Whether this run is a restart. */
static inline int pm_restarted(void)
{
    return getenv("TERRACE_CRASH_IMAGE") != NULL;
}

static inline uint64_t pm_checksum(uint64_t a, uint64_t b)
{
    uint64_t sum = a * UINT64_C(0x9e3779b97f4a7c15) ^ (b + UINT64_C(0x7f4a7c15));
    return sum ^ sum >> 29;
}

#endif
