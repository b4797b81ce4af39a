/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Environment, symmetric memory, barrier and collectives of the run-time library. */
#define _GNU_SOURCE
#include "xbrtime.h"
#include "transfer.h"
#include "xbgas.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Where the symmetric heap lies: far from programs, stacks and what mmap chooses. */
#define HEAP_START ((char *)0x1000000000)
#define HEAP_BYTES (256ul << 20)
/* The paper's least allocation (section 4.2). */
#define UNIT 4096ul
#define UNITS (HEAP_BYTES / UNIT)
/* Rounds of a barrier of 1024 elements. */
#define ROUNDS 10

static int my_element;
static int elements;
static int ready;

static int read_number(const char *name)
{
	const char *text = getenv(name);
	return text ? atoi(text) : -1;
}

/* Before main, as the paper has it. */
__attribute__((constructor)) static void set_up(void)
{
	my_element = read_number("XBGAS_PE");
	elements = read_number("XBGAS_PES");
	if (my_element < 0 || elements <= my_element)
		return;
	void *heap = mmap(HEAP_START, HEAP_BYTES, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	ready = heap == HEAP_START;
}

int xbrtime_init(void)
{
	return ready ? 0 : -1;
}

void xbrtime_close(void)
{
	xbrtime_barrier();
}

int xbrtime_mype(void)
{
	return my_element;
}

int xbrtime_num_pes(void)
{
	return elements;
}

extern char _end[], __data_start[] __attribute__((weak));

int xbrtime_addr_accessible(const void *address, int pe)
{
	const char *at = address;
	if (!ready || pe < 0 || pe >= elements)
		return 0;
	return (at >= HEAP_START && at < HEAP_START + HEAP_BYTES) ||
	       (at >= __data_start && at < _end);
}

/* For each unit of the heap: how many units the block that begins there has; 0 inside and free. */
static uint32_t block_units[UNITS];

void *xbrtime_malloc(size_t bytes)
{
	size_t units = bytes / UNIT + (bytes % UNIT != 0);
	size_t free_from = 0;
	if (!ready || units == 0 || units > UNITS)
		return NULL;
	for (size_t at = 0; at < UNITS;) {
		if (block_units[at]) {
			at += block_units[at];
			free_from = at;
			continue;
		}
		at++;
		if (at - free_from == units) {
			block_units[free_from] = (uint32_t)units;
			return HEAP_START + free_from * UNIT;
		}
	}
	return NULL;
}

void xbrtime_free(void *block)
{
	size_t offset = (size_t)((char *)block - HEAP_START);
	if (!block || offset % UNIT || offset >= HEAP_BYTES || !block_units[offset / UNIT])
		return;
	/* Reads as zeros when it is allocated anew. */
	madvise(block, block_units[offset / UNIT] * UNIT, MADV_DONTNEED);
	block_units[offset / UNIT] = 0;
}

/* Transfers are complete when their instructions are; the fence orders them for RVWMO. */
void xbrtime_wait(void)
{
	__asm__ volatile("fence rw, rw" : : : "memory");
}

void xbrtime_quiet(void)
{
	xbrtime_wait();
}

/* Dissemination: in round r, element n tells element n + 2^r that it and those before arrived. */
static volatile int32_t arrived[ROUNDS];
static int32_t epoch;

void xbrtime_barrier(void)
{
	epoch++;
	xbrtime_wait();
	for (int round = 0; 1 << round < elements; round++) {
		int to = (my_element + (1 << round)) % elements;
		int32_t seen;
		xbgas_store_i32((uint64_t)to + 1, (void *)&arrived[round], epoch);
		while ((seen = arrived[round]) - epoch < 0)
			syscall(SYS_futex, &arrived[round], 0, seen, NULL, NULL, 0);
	}
	xbrtime_wait();
}

/* The functions of one type. */
#define DEFINE(name, type)                                                               \
	void xbrtime_##name##_put(type *dest, const type *src, size_t nelems, int stride,\
				  int pe)                                                \
	{                                                                                \
		xbrtime_put_bytes(dest, src, sizeof(type), nelems, stride, pe);          \
		xbrtime_wait();                                                          \
	}                                                                                \
	void xbrtime_##name##_put_nb(type *dest, const type *src, size_t nelems,         \
				     int stride, int pe)                                 \
	{                                                                                \
		xbrtime_put_bytes(dest, src, sizeof(type), nelems, stride, pe);          \
	}                                                                                \
	void xbrtime_##name##_get(type *dest, const type *src, size_t nelems, int stride,\
				  int pe)                                                \
	{                                                                                \
		xbrtime_get_bytes(dest, src, sizeof(type), nelems, stride, pe);          \
		xbrtime_wait();                                                          \
	}                                                                                \
	void xbrtime_##name##_get_nb(type *dest, const type *src, size_t nelems,         \
				     int stride, int pe)                                 \
	{                                                                                \
		xbrtime_get_bytes(dest, src, sizeof(type), nelems, stride, pe);          \
	}                                                                                \
	void xbrtime_##name##_broadcast(type *dest, const type *src, size_t nelems,      \
					int stride, int root)                            \
	{                                                                                \
		xbrtime_barrier();                                                       \
		xbrtime_##name##_get(dest, src, nelems, stride, root);                   \
		xbrtime_barrier();                                                       \
	}                                                                                \
	void xbrtime_##name##_scatter(type *dest, const type *src, const int *counts,    \
				      const int *offsets, size_t nelems, int root)       \
	{                                                                                \
		(void)nelems;                                                            \
		xbrtime_barrier();                                                       \
		xbrtime_##name##_get(dest, src + offsets[my_element],                    \
				     (size_t)counts[my_element], 1, root);               \
		xbrtime_barrier();                                                       \
	}                                                                                \
	void xbrtime_##name##_gather(type *dest, const type *src, const int *counts,     \
				     const int *offsets, size_t nelems, int root)        \
	{                                                                                \
		(void)nelems;                                                            \
		xbrtime_barrier();                                                       \
		for (int pe = 0; my_element == root && pe < elements; pe++)              \
			xbrtime_##name##_get(dest + offsets[pe], src,                    \
					     (size_t)counts[pe], 1, pe);                 \
		xbrtime_barrier();                                                       \
	}                                                                                \
	void xbrtime_##name##_alltoall(type *dest, const type *src, size_t nelems)       \
	{                                                                                \
		xbrtime_barrier();                                                       \
		for (int pe = 0; pe < elements; pe++)                                    \
			xbrtime_##name##_get(dest + (size_t)pe * nelems,                 \
					     src + (size_t)my_element * nelems, nelems,  \
					     1, pe);                                     \
		xbrtime_barrier();                                                       \
	}

/* One element at a time, so that dest of the root may be its src. */
#define DEFINE_REDUCTION(name, type, operation, combine)                                 \
	void xbrtime_##name##_reduce_##operation(type *dest, const type *src,            \
						 size_t nelems, int stride, int root)    \
	{                                                                                \
		xbrtime_barrier();                                                       \
		for (size_t i = 0; my_element == root && i < nelems; i++) {              \
			ptrdiff_t at = (ptrdiff_t)i * stride;                            \
			type a, b;                                                       \
			xbrtime_##name##_get(&a, src + at, 1, 1, 0);                     \
			for (int pe = 1; pe < elements; pe++) {                          \
				xbrtime_##name##_get(&b, src + at, 1, 1, pe);            \
				a = (type)(combine);                                     \
			}                                                                \
			dest[at] = a;                                                    \
		}                                                                        \
		xbrtime_barrier();                                                       \
	}

#define DEFINE_REDUCTIONS(name, type)                                                    \
	DEFINE_REDUCTION(name, type, sum, a + b)                                         \
	DEFINE_REDUCTION(name, type, product, a * b)                                     \
	DEFINE_REDUCTION(name, type, min, b < a ? b : a)                                 \
	DEFINE_REDUCTION(name, type, max, b > a ? b : a)

#define DEFINE_BITWISE(name, type)                                                       \
	DEFINE_REDUCTION(name, type, and, a & b)                                         \
	DEFINE_REDUCTION(name, type, or, a | b)                                          \
	DEFINE_REDUCTION(name, type, xor, a ^ b)

XBRTIME_TYPES(DEFINE)
XBRTIME_TYPES(DEFINE_REDUCTIONS)
XBRTIME_INTEGER_TYPES(DEFINE_BITWISE)
