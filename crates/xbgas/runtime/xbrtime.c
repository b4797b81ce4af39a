/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Environment, symmetric memory, barrier and collectives of the run-time library. */
#define _GNU_SOURCE
#include "xbrtime.h"
#include "transfer.h"
#include "xbgas.h"

#include <stdio.h>
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
#define MOST_ELEMENTS 1024
/* Rounds of a barrier of so many elements. */
#define ROUNDS 10

static int my_element;
static int elements;
static int ready;

/* A call that no element can go on from: says which, and ends all. */
static void fail(const char *call, const char *what)
{
	fprintf(stderr, "%s: %s\n", call, what);
	abort();
}

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
/* Of all calls of malloc and free so far: heaps of equal history are equal. */
static uint32_t heap_history;

static void remember(size_t call)
{
	heap_history = (heap_history ^ (uint32_t)call ^ (uint32_t)(call >> 32)) * 0x9e3779b1u + 1;
}

void *xbrtime_malloc(size_t bytes)
{
	size_t units = bytes / UNIT + (bytes % UNIT != 0);
	size_t free_from = 0;
	remember(bytes);
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
	remember(~offset);
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

/* Waits while a word in this element's memory is what was seen there. */
static void sleep_while(volatile int32_t *word, int32_t seen)
{
	syscall(SYS_futex, word, 0, seen, NULL, NULL, 0);
}

void xbrtime_wait_changed(volatile int32_t *word, int32_t seen)
{
	while (*word == seen)
		sleep_while(word, seen);
	xbrtime_wait();
}

/*
 * Dissemination: in round r, element n tells element n + 2^r that it and those before arrived. The
 * low half of a word counts barriers, the high half is the teller's heap history.
 */
static volatile int64_t arrived[ROUNDS];
static int32_t epoch;

void xbrtime_barrier(void)
{
	epoch++;
	xbrtime_wait();
	for (int round = 0; 1 << round < elements; round++) {
		int to = (my_element + (1 << round)) % elements;
		volatile int32_t *count = (volatile int32_t *)&arrived[round];
		uint64_t word = (uint64_t)heap_history << 32 | (uint32_t)epoch;
		int64_t told;
		xbgas_store_i64((uint64_t)to + 1, (void *)&arrived[round], (int64_t)word);
		while ((int32_t)(told = arrived[round]) - epoch < 0)
			sleep_while(count, (int32_t)told);
		if ((int32_t)told == epoch && (uint32_t)(told >> 32) != heap_history)
			fail("xbrtime_barrier", "symmetric heaps differ; call xbrtime_malloc and "
						"xbrtime_free alike on every element");
	}
	xbrtime_wait();
}

/*
 * Atomics. Dialects without them lock the memory of the element by Lamport's bakery ("A New
 * Solution of Dijkstra's Concurrent Programming Problem", 1974), which needs loads and stores only.
 */
static volatile int32_t choosing[MOST_ELEMENTS], ticket[MOST_ELEMENTS];

static void lock_element(int pe)
{
	uint64_t object = (uint64_t)pe + 1;
	int32_t last = 0;
	xbgas_store_i32(object, (void *)&choosing[my_element], 1);
	xbrtime_wait();
	for (int other = 0; other < elements; other++) {
		int32_t seen = xbgas_load_i32(object, (void *)&ticket[other]);
		last = seen > last ? seen : last;
	}
	int32_t own = last + 1;
	xbgas_store_i32(object, (void *)&ticket[my_element], own);
	xbrtime_wait();
	xbgas_store_i32(object, (void *)&choosing[my_element], 0);
	xbrtime_wait();
	for (int other = 0; other < elements; other++) {
		int32_t seen;
		while (xbgas_load_i32(object, (void *)&choosing[other]))
			;
		while ((seen = xbgas_load_i32(object, (void *)&ticket[other])) != 0 &&
		       (seen < own || (seen == own && other < my_element)))
			;
	}
	xbrtime_wait();
}

static void unlock_element(int pe)
{
	xbrtime_wait();
	xbgas_store_i32((uint64_t)pe + 1, (void *)&ticket[my_element], 0);
}

static void check_element(const char *call, int pe)
{
	if (pe < 0 || pe >= elements)
		fail(call, "no such element");
}

#define ATOMIC_INSTRUCTIONS (XBGAS_DIALECT == 2018)

/* instruction: of dialect 2018; combine: of the old value a and the operand b. */
#define DEFINE_ATOMIC(name, type, width, operation, instruction, combine)                \
	type xbrtime_##name##_atomic_##operation(type *dest, type value, int pe)         \
	{                                                                                \
		check_element("xbrtime_" #name "_atomic_" #operation, pe);               \
		if (ATOMIC_INSTRUCTIONS && instruction >= 0)                             \
			return (type)xbgas_atomic##width((uint64_t)pe + 1, dest,         \
							 instruction, (uint64_t)value, 0);\
		lock_element(pe);                                                        \
		type a = (type)xbgas_load_i##width((uint64_t)pe + 1, dest), b = value;   \
		xbgas_store_i##width((uint64_t)pe + 1, dest, (int##width##_t)(combine)); \
		unlock_element(pe);                                                      \
		return a;                                                                \
	}

/* The instructions compare signed values: the unsigned smaller and larger one need swaps. */
#define DEFINE_ATOMICS(name, type, width)                                                \
	type xbrtime_##name##_atomic_compare_swap(type *dest, type expected, type value, \
						  int pe)                                \
	{                                                                                \
		check_element("xbrtime_" #name "_atomic_compare_swap", pe);              \
		if (ATOMIC_INSTRUCTIONS)                                                 \
			return (type)xbgas_atomic##width((uint64_t)pe + 1, dest,         \
							 XBGAS_COMPARE_SWAP,             \
							 (uint64_t)value,                \
							 (uint64_t)expected);            \
		lock_element(pe);                                                        \
		type old = (type)xbgas_load_i##width((uint64_t)pe + 1, dest);            \
		if (old == expected)                                                     \
			xbgas_store_i##width((uint64_t)pe + 1, dest,                     \
					     (int##width##_t)value);                     \
		unlock_element(pe);                                                      \
		return old;                                                              \
	}                                                                                \
	DEFINE_ATOMIC(name, type, width, add, XBGAS_ADD, a + b)                          \
	DEFINE_ATOMIC(name, type, width, xor, XBGAS_XOR, a ^ b)                          \
	DEFINE_ATOMIC(name, type, width, and, XBGAS_AND, a & b)                          \
	DEFINE_ATOMIC(name, type, width, or, XBGAS_OR, a | b)                            \
	DEFINE_EXTREME(name, type, width, min, XBGAS_MIN, b < a ? b : a)                 \
	DEFINE_EXTREME(name, type, width, max, XBGAS_MAX, b > a ? b : a)

#define DEFINE_EXTREME(name, type, width, operation, instruction, combine)               \
	type xbrtime_##name##_atomic_##operation(type *dest, type value, int pe)         \
	{                                                                                \
		check_element("xbrtime_" #name "_atomic_" #operation, pe);               \
		if (ATOMIC_INSTRUCTIONS && (type)-1 < (type)1)                           \
			return (type)xbgas_atomic##width((uint64_t)pe + 1, dest,         \
							 instruction, (uint64_t)value, 0);\
		type a = (type)xbgas_load_i##width((uint64_t)pe + 1, dest), b = value;   \
		for (;;) {                                                               \
			type seen = xbrtime_##name##_atomic_compare_swap(dest, a,        \
						(type)(combine), pe);                    \
			if (seen == a)                                                   \
				return a;                                                \
			a = seen;                                                        \
		}                                                                        \
	}

XBRTIME_ATOMIC_TYPES(DEFINE_ATOMICS)

/* What scatter and gather move: nelems elements altogether. */
static void check_parts(const char *call, const int *counts, size_t nelems)
{
	size_t sum = 0;
	for (int pe = 0; pe < elements; pe++) {
		if (counts[pe] < 0)
			fail(call, "a count is negative");
		sum += (size_t)counts[pe];
	}
	if (sum != nelems)
		fail(call, "the counts are not nelems altogether");
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
		check_parts("xbrtime_" #name "_scatter", counts, nelems);                \
		xbrtime_barrier();                                                       \
		xbrtime_##name##_get(dest, src + offsets[my_element],                    \
				     (size_t)counts[my_element], 1, root);               \
		xbrtime_barrier();                                                       \
	}                                                                                \
	void xbrtime_##name##_gather(type *dest, const type *src, const int *counts,     \
				     const int *offsets, size_t nelems, int root)        \
	{                                                                                \
		check_parts("xbrtime_" #name "_gather", counts, nelems);                 \
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
