/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Strided transfers. From eight elements on, eight loads precede eight stores in assembly, so that
 * a machine with several accesses in flight overlaps them (section 4.2 of the paper).
 */
#include "transfer.h"
#include "xbgas.h"

#include <stdint.h>

/* 0 leaves single moves only, for comparisons. */
#ifndef XBRTIME_UNROLL
#define XBRTIME_UNROLL 1
#endif

/* Source and destination advance by step; t6 to t0 and a7 hold the values. */
#define UP(reg) "add " reg ", " reg ", %[step]\n\t"
#define LOCAL_LOAD(op, to) op " " to ", 0(%[src])\n\t" UP("%[src]")
#define LOCAL_STORE(op, value) op " " value ", 0(%[dest])\n\t" UP("%[dest]")
#define REMOTE_LOAD(f3, to) XBGAS_RAW_LOAD(f3, to, "%[src]") UP("%[src]")
#define REMOTE_STORE(f3, value) XBGAS_RAW_STORE(f3, value, "%[dest]") UP("%[dest]")
#define EIGHT(what, how)                                                                 \
	what(how, "t0") what(how, "t1") what(how, "t2") what(how, "t3") what(how, "t4")  \
	what(how, "t5") what(how, "t6") what(how, "a7")

/* A function that moves nelems elements; load and store are macros of one of them. */
#define DEFINE_MOVE(name, load, load_how, store, store_how)                              \
	static void name(char *dest, const char *src, size_t nelems, ptrdiff_t step,     \
			 uint64_t object)                                                \
	{                                                                                \
		for (; XBRTIME_UNROLL && nelems >= 8; nelems -= 8)                       \
			__asm__ volatile(XBGAS_SET_E10("%[object]")                      \
					 EIGHT(load, load_how) EIGHT(store, store_how)   \
					 : [src] "+&r"(src), [dest] "+&r"(dest)          \
					 : [step] "r"(step), [object] "r"(object)        \
					 : "t0", "t1", "t2", "t3", "t4", "t5", "t6",     \
					   "a7", "memory");                              \
		for (; nelems; nelems--)                                                 \
			__asm__ volatile(XBGAS_SET_E10("%[object]")                      \
					 load(load_how, "t0") store(store_how, "t0")     \
					 : [src] "+&r"(src), [dest] "+&r"(dest)          \
					 : [step] "r"(step), [object] "r"(object)        \
					 : "t0", "memory");                              \
	}

DEFINE_MOVE(put1, LOCAL_LOAD, "lb", REMOTE_STORE, "0")
DEFINE_MOVE(put2, LOCAL_LOAD, "lh", REMOTE_STORE, "1")
DEFINE_MOVE(put4, LOCAL_LOAD, "lw", REMOTE_STORE, "2")
DEFINE_MOVE(put8, LOCAL_LOAD, "ld", REMOTE_STORE, "3")
DEFINE_MOVE(get1, REMOTE_LOAD, "0", LOCAL_STORE, "sb")
DEFINE_MOVE(get2, REMOTE_LOAD, "1", LOCAL_STORE, "sh")
DEFINE_MOVE(get4, REMOTE_LOAD, "2", LOCAL_STORE, "sw")
DEFINE_MOVE(get8, REMOTE_LOAD, "3", LOCAL_STORE, "sd")

typedef void move_function(char *, const char *, size_t, ptrdiff_t, uint64_t);

static void move(move_function *const moves[4], char *dest, const char *src, size_t size,
		 size_t nelems, int stride, int pe)
{
	ptrdiff_t step = (ptrdiff_t)size * stride;
	/* Object n + 1 is element n; a negative element becomes an object that is not there. */
	uint64_t object = pe < 0 ? UINT64_MAX : (uint64_t)pe + 1;
	switch (size) {
	case 1:
		moves[0](dest, src, nelems, step, object);
		break;
	case 2:
		moves[1](dest, src, nelems, step, object);
		break;
	case 4:
		moves[2](dest, src, nelems, step, object);
		break;
	default:
		/* 8 bytes, or 16 as two halves. */
		for (size_t half = 0; half < size; half += 8)
			moves[3](dest + half, src + half, nelems, step, object);
	}
}

void xbrtime_put_bytes(void *dest, const void *src, size_t size, size_t nelems, int stride, int pe)
{
	static move_function *const moves[4] = { put1, put2, put4, put8 };
	move(moves, dest, src, size, nelems, stride, pe);
}

void xbrtime_get_bytes(void *dest, const void *src, size_t size, size_t nelems, int stride, int pe)
{
	static move_function *const moves[4] = { get1, get2, get4, get8 };
	move(moves, dest, src, size, nelems, stride, pe);
}
