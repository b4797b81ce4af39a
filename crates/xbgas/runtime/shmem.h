/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A subset of OpenSHMEM 1.4 over xbrtime, for programs that include <shmem.h>: set-up, memory, put
 * and get, atomics, wait_until, barrier, broadcast, reductions of all elements, alltoall.
 *
 * Active sets are all elements: other PE_start, logPE_stride or PE_size abort, as OpenSHMEM leaves
 * to the library. Names and arguments: "OpenSHMEM Application Programming Interface", version 1.4.
 */
#ifndef XBGAS_SHMEM_H
#define XBGAS_SHMEM_H

#include "xbrtime.h"

#include <stdio.h>
#include <stdlib.h>

enum { SHMEM_CMP_EQ, SHMEM_CMP_NE, SHMEM_CMP_GT, SHMEM_CMP_LE, SHMEM_CMP_LT, SHMEM_CMP_GE };
#define SHMEM_SYNC_VALUE 0
#define SHMEM_SYNC_SIZE 1
#define SHMEM_BCAST_SYNC_SIZE 1
#define SHMEM_REDUCE_SYNC_SIZE 1
#define SHMEM_REDUCE_MIN_WRKDATA_SIZE 1
#define SHMEM_ALLTOALL_SYNC_SIZE 1

static inline void shmem_init(void)
{
	if (xbrtime_init() != 0) {
		fprintf(stderr, "shmem_init: no elements; run with terrace riscv run --pes\n");
		abort();
	}
}

static inline void shmem_finalize(void)
{
	xbrtime_close();
}

static inline int shmem_my_pe(void)
{
	return xbrtime_mype();
}

static inline int shmem_n_pes(void)
{
	return xbrtime_num_pes();
}

static inline int shmem_addr_accessible(const void *address, int pe)
{
	return xbrtime_addr_accessible(address, pe);
}

static inline void *shmem_malloc(size_t bytes)
{
	return xbrtime_malloc(bytes);
}

static inline void shmem_free(void *block)
{
	xbrtime_free(block);
}

static inline void shmem_barrier_all(void)
{
	xbrtime_barrier();
}

static inline void shmem_sync_all(void)
{
	xbrtime_barrier();
}

static inline void shmem_quiet(void)
{
	xbrtime_quiet();
}

static inline void shmem_fence(void)
{
	xbrtime_wait();
}

static inline void shmem_check_set(int start, int stride, int size)
{
	if (start != 0 || stride != 0 || size != xbrtime_num_pes()) {
		fprintf(stderr, "shmem: active sets are all elements\n");
		abort();
	}
}

static inline int shmem_compare(int comparison, int less, int equal)
{
	switch (comparison) {
	case SHMEM_CMP_EQ:
		return equal;
	case SHMEM_CMP_NE:
		return !equal;
	case SHMEM_CMP_GT:
		return !less && !equal;
	case SHMEM_CMP_LE:
		return less || equal;
	case SHMEM_CMP_LT:
		return less;
	default:
		return !less;
	}
}

#define SHMEM_DEFINE_TRANSFERS(name, type)                                               \
	static inline void shmem_##name##_put(type *dest, const type *src, size_t nelems,\
					      int pe)                                    \
	{                                                                                \
		xbrtime_##name##_put(dest, src, nelems, 1, pe);                          \
	}                                                                                \
	static inline void shmem_##name##_get(type *dest, const type *src, size_t nelems,\
					      int pe)                                    \
	{                                                                                \
		xbrtime_##name##_get(dest, src, nelems, 1, pe);                          \
	}                                                                                \
	static inline void shmem_##name##_put_nbi(type *dest, const type *src,           \
						  size_t nelems, int pe)                 \
	{                                                                                \
		xbrtime_##name##_put_nb(dest, src, nelems, 1, pe);                       \
	}                                                                                \
	static inline void shmem_##name##_get_nbi(type *dest, const type *src,           \
						  size_t nelems, int pe)                 \
	{                                                                                \
		xbrtime_##name##_get_nb(dest, src, nelems, 1, pe);                       \
	}                                                                                \
	static inline void shmem_##name##_p(type *dest, type value, int pe)              \
	{                                                                                \
		xbrtime_##name##_put(dest, &value, 1, 1, pe);                            \
	}                                                                                \
	static inline type shmem_##name##_g(const type *src, int pe)                     \
	{                                                                                \
		type value;                                                              \
		xbrtime_##name##_get(&value, src, 1, 1, pe);                             \
		return value;                                                            \
	}                                                                                \
	static inline void shmem_##name##_iput(type *dest, const type *src,              \
					       ptrdiff_t to, ptrdiff_t from,             \
					       size_t nelems, int pe)                    \
	{                                                                                \
		for (ptrdiff_t i = 0; i < (ptrdiff_t)nelems; i++)                        \
			xbrtime_##name##_put_nb(dest + i * to, src + i * from, 1, 1, pe);\
		xbrtime_wait();                                                          \
	}                                                                                \
	static inline void shmem_##name##_iget(type *dest, const type *src,              \
					       ptrdiff_t to, ptrdiff_t from,             \
					       size_t nelems, int pe)                    \
	{                                                                                \
		for (ptrdiff_t i = 0; i < (ptrdiff_t)nelems; i++)                        \
			xbrtime_##name##_get_nb(dest + i * to, src + i * from, 1, 1, pe);\
		xbrtime_wait();                                                          \
	}
XBRTIME_TYPES(SHMEM_DEFINE_TRANSFERS)

#define SHMEM_DEFINE_ATOMICS(name, type, width)                                          \
	static inline type shmem_##name##_atomic_fetch_add(type *dest, type value,       \
							   int pe)                       \
	{                                                                                \
		return xbrtime_##name##_atomic_add(dest, value, pe);                     \
	}                                                                                \
	static inline void shmem_##name##_atomic_add(type *dest, type value, int pe)     \
	{                                                                                \
		xbrtime_##name##_atomic_add(dest, value, pe);                            \
	}                                                                                \
	static inline type shmem_##name##_atomic_fetch_inc(type *dest, int pe)           \
	{                                                                                \
		return xbrtime_##name##_atomic_add(dest, 1, pe);                         \
	}                                                                                \
	static inline void shmem_##name##_atomic_inc(type *dest, int pe)                 \
	{                                                                                \
		xbrtime_##name##_atomic_add(dest, 1, pe);                                \
	}                                                                                \
	static inline type shmem_##name##_atomic_fetch(const type *src, int pe)          \
	{                                                                                \
		return xbrtime_##name##_atomic_add((type *)src, 0, pe);                  \
	}                                                                                \
	static inline type shmem_##name##_atomic_compare_swap(type *dest, type expected, \
							      type value, int pe)        \
	{                                                                                \
		return xbrtime_##name##_atomic_compare_swap(dest, expected, value, pe);  \
	}                                                                                \
	static inline type shmem_##name##_atomic_swap(type *dest, type value, int pe)    \
	{                                                                                \
		type seen = shmem_##name##_atomic_fetch(dest, pe), expected;             \
		do {                                                                     \
			expected = seen;                                                 \
			seen = xbrtime_##name##_atomic_compare_swap(dest, expected,      \
								    value, pe);          \
		} while (seen != expected);                                              \
		return seen;                                                             \
	}                                                                                \
	static inline void shmem_##name##_atomic_set(type *dest, type value, int pe)     \
	{                                                                                \
		shmem_##name##_atomic_swap(dest, value, pe);                             \
	}                                                                                \
	static inline void shmem_##name##_wait_until(volatile type *word,                \
						     int comparison, type value)         \
	{                                                                                \
		for (;;) {                                                               \
			type now = *word;                                                \
			if (shmem_compare(comparison, now < value, now == value))        \
				break;                                                   \
			/* Of eight bytes any can change: that is looked for. */         \
			if (width == 32)                                                 \
				xbrtime_wait_changed((volatile int32_t *)word,           \
						     (int32_t)now);                      \
		}                                                                        \
		xbrtime_wait();                                                          \
	}
XBRTIME_ATOMIC_TYPES(SHMEM_DEFINE_ATOMICS)

#define SHMEM_DEFINE_REDUCTION(name, type, shmem_operation, operation)                   \
	static inline void shmem_##name##_##shmem_operation##_to_all(                    \
		type *dest, const type *src, int nelems, int start, int stride, int size,\
		type *work, long *sync)                                                  \
	{                                                                                \
		(void)work, (void)sync;                                                  \
		shmem_check_set(start, stride, size);                                    \
		xbrtime_##name##_reduce_##operation(dest, src, (size_t)nelems, 1, 0);    \
		xbrtime_##name##_broadcast(dest, dest, (size_t)nelems, 1, 0);            \
	}
#define SHMEM_DEFINE_REDUCTIONS(name, type)                                              \
	SHMEM_DEFINE_REDUCTION(name, type, sum, sum)                                     \
	SHMEM_DEFINE_REDUCTION(name, type, prod, product)                                \
	SHMEM_DEFINE_REDUCTION(name, type, min, min)                                     \
	SHMEM_DEFINE_REDUCTION(name, type, max, max)
#define SHMEM_DEFINE_BITWISE(name, type)                                                 \
	SHMEM_DEFINE_REDUCTION(name, type, and, and)                                     \
	SHMEM_DEFINE_REDUCTION(name, type, or, or)                                       \
	SHMEM_DEFINE_REDUCTION(name, type, xor, xor)
XBRTIME_TYPES(SHMEM_DEFINE_REDUCTIONS)
XBRTIME_INTEGER_TYPES(SHMEM_DEFINE_BITWISE)

/* The root's dest stays as it is, as OpenSHMEM has it. */
#define SHMEM_DEFINE_SIZED(bits)                                                         \
	static inline void shmem_broadcast##bits(void *dest, const void *src,            \
						 size_t nelems, int root, int start,     \
						 int stride, int size, long *sync)       \
	{                                                                                \
		(void)sync;                                                              \
		shmem_check_set(start, stride, size);                                    \
		xbrtime_barrier();                                                       \
		if (xbrtime_mype() != root)                                              \
			xbrtime_int##bits##_get((int##bits##_t *)dest,                   \
						(const int##bits##_t *)src, nelems, 1,   \
						root);                                   \
		xbrtime_barrier();                                                       \
	}                                                                                \
	static inline void shmem_alltoall##bits(void *dest, const void *src,             \
						size_t nelems, int start, int stride,    \
						int size, long *sync)                    \
	{                                                                                \
		(void)sync;                                                              \
		shmem_check_set(start, stride, size);                                    \
		xbrtime_int##bits##_alltoall((int##bits##_t *)dest,                      \
					     (const int##bits##_t *)src, nelems);        \
	}
SHMEM_DEFINE_SIZED(32)
SHMEM_DEFINE_SIZED(64)

#endif
