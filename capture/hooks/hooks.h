// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * What the hooks that are inlined (inline.c) and the runtime (runtime.c) have in common.
 *
 * A word is as in ring.h's rings: bits 0-47 address, 48-50 log2 of the bytes, 51 store, bit 63
 * clear. Bits 52-62 name the place in the code: eleven bits that differ between most places of a
 * loop, so that addresses can be predicted from the same place's last.
 */
#pragma once
#include <stdint.h>

/* The writer's first two members: where the next word goes, and where that must not be. */
struct hooks_writer {
    uint64_t *next, *limit;
};
#define STORE 8
#define SIZE_AND_WAY(log2_bytes, way) ((uint64_t)((log2_bytes) | (way)) << 48)

/* Writes a word past the caches: the recorder's core reads it next, and a line that it has read
 * need not be fetched back to be
   written again. No release orders such stores; an `sfence` does (ring.h). */
static inline __attribute__((always_inline)) void put_past_caches(uint64_t *at, uint64_t word)
{
#ifdef __x86_64__
    __asm__ volatile("movnti %1, %0" : "=m"(*at) : "r"(word));
#else
    *at = word;
#endif
}

/* The chunk is full, or there is none: where the next word goes. */
uint64_t *terrace_hooks_refill(void);
/* A function is entered at this place of its code; called only while somebody wants to know
 * (`terrace_hooks_watch`). */
void terrace_hooks_enter(uint64_t place);
extern int terrace_hooks_watch;
