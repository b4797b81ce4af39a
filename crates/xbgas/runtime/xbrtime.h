/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Run-time library of xBGAS with xbrtime's function names.
 *
 * Processing elements are copies of one static program. Global variables and what xbrtime_malloc
 * returns lie at the same address on each (symmetric). Counts are in elements of the type, strides
 * in elements too. A transfer with an element that is not there, or to an address that is not
 * mapped there, ends all elements with a line that says so.
 *
 * Programs must not be position-independent: link with -static -no-pie.
 */
#ifndef XBRTIME_H
#define XBRTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library sets itself up before main; init returns 0, or -1 outside an element machine. */
int xbrtime_init(void);
/* Waits for all elements. Every element calls it before it exits. */
void xbrtime_close(void);
/* This element, from 0. */
int xbrtime_mype(void);
/* How many there are. */
int xbrtime_num_pes(void);
/* Whether an address of this element's symmetric memory is also that of an element: 1 or 0. */
int xbrtime_addr_accessible(const void *address, int pe);
/*
 * Symmetric memory, zeroed when new, in units of 4 KiB. Every element calls malloc and free with
 * the same arguments in the same order; the next barrier aborts where they did not. malloc returns
 * NULL for 0 bytes or when the heap is used up; free ignores what malloc did not return.
 */
void *xbrtime_malloc(size_t bytes);
void xbrtime_free(void *block);
/* All elements reach it before any leaves it; stores before it are visible after it. */
void xbrtime_barrier(void);
/* Completes this element's transfers without _nb and with. */
void xbrtime_wait(void);
void xbrtime_quiet(void);
/* Returns when a word of this element's memory is not seen any more; another element changes it. */
void xbrtime_wait_changed(volatile int32_t *word, int32_t seen);

#define XBRTIME_TYPES(X)                                                                 \
	X(float, float) X(double, double) X(longdouble, long double)                     \
	X(char, char) X(uchar, unsigned char) X(schar, signed char)                      \
	X(ushort, unsigned short) X(short, short) X(uint, unsigned int) X(int, int)      \
	X(ulong, unsigned long) X(long, long) X(ulonglong, unsigned long long)           \
	X(longlong, long long) X(uint8, uint8_t) X(int8, int8_t) X(uint16, uint16_t)     \
	X(int16, int16_t) X(uint32, uint32_t) X(int32, int32_t) X(uint64, uint64_t)      \
	X(int64, int64_t) X(size, size_t) X(ptrdiff, ptrdiff_t)

#define XBRTIME_INTEGER_TYPES(X)                                                         \
	X(char, char) X(uchar, unsigned char) X(schar, signed char)                      \
	X(ushort, unsigned short) X(short, short) X(uint, unsigned int) X(int, int)      \
	X(ulong, unsigned long) X(long, long) X(ulonglong, unsigned long long)           \
	X(longlong, long long) X(uint8, uint8_t) X(int8, int8_t) X(uint16, uint16_t)     \
	X(int16, int16_t) X(uint32, uint32_t) X(int32, int32_t) X(uint64, uint64_t)      \
	X(int64, int64_t) X(size, size_t) X(ptrdiff, ptrdiff_t)

/*
 * put and get move elements 0, stride, 2 stride... of src to the same places of dest. get reads
 * src on pe; put writes dest on pe. Those with _nb are complete after xbrtime_wait or quiet. Where
 * pe is the caller, src and dest may be the same and must not overlap otherwise.
 *
 * Collectives: every element calls them with the same arguments. src of the root (broadcast,
 * scatter) or of all (reduce, gather, alltoall) is symmetric. broadcast writes dest of all, reduce
 * and gather that of the root. scatter and gather move counts[pe] elements at offsets[pe], nelems
 * altogether; they abort where the counts are not.
 * alltoall moves nelems elements from each element to each.
 */
#define XBRTIME_DECLARE(name, type)                                                      \
	void xbrtime_##name##_put(type *dest, const type *src, size_t nelems, int stride,\
				  int pe);                                               \
	void xbrtime_##name##_put_nb(type *dest, const type *src, size_t nelems,         \
				     int stride, int pe);                                \
	void xbrtime_##name##_get(type *dest, const type *src, size_t nelems, int stride,\
				  int pe);                                               \
	void xbrtime_##name##_get_nb(type *dest, const type *src, size_t nelems,         \
				     int stride, int pe);                                \
	void xbrtime_##name##_broadcast(type *dest, const type *src, size_t nelems,      \
					int stride, int root);                           \
	void xbrtime_##name##_reduce_sum(type *dest, const type *src, size_t nelems,     \
					 int stride, int root);                          \
	void xbrtime_##name##_reduce_product(type *dest, const type *src, size_t nelems, \
					     int stride, int root);                      \
	void xbrtime_##name##_reduce_min(type *dest, const type *src, size_t nelems,     \
					 int stride, int root);                          \
	void xbrtime_##name##_reduce_max(type *dest, const type *src, size_t nelems,     \
					 int stride, int root);                          \
	void xbrtime_##name##_scatter(type *dest, const type *src, const int *counts,    \
				      const int *offsets, size_t nelems, int root);      \
	void xbrtime_##name##_gather(type *dest, const type *src, const int *counts,     \
				     const int *offsets, size_t nelems, int root);       \
	void xbrtime_##name##_alltoall(type *dest, const type *src, size_t nelems);
XBRTIME_TYPES(XBRTIME_DECLARE)
#undef XBRTIME_DECLARE

#define XBRTIME_DECLARE(name, type)                                                      \
	void xbrtime_##name##_reduce_and(type *dest, const type *src, size_t nelems,     \
					 int stride, int root);                          \
	void xbrtime_##name##_reduce_or(type *dest, const type *src, size_t nelems,      \
					int stride, int root);                           \
	void xbrtime_##name##_reduce_xor(type *dest, const type *src, size_t nelems,     \
					 int stride, int root);
XBRTIME_INTEGER_TYPES(XBRTIME_DECLARE)
#undef XBRTIME_DECLARE

/*
 * Atomics on dest of pe, which return what was there: add, xor, and, or, min, max, compare_swap.
 * They are atomic to each other, not to plain stores. No such pe aborts.
 */
#define XBRTIME_ATOMIC_TYPES(X)                                                          \
	X(uint, unsigned int, 32) X(int, int, 32) X(ulong, unsigned long, 64)            \
	X(long, long, 64) X(ulonglong, unsigned long long, 64)                           \
	X(longlong, long long, 64) X(uint32, uint32_t, 32) X(int32, int32_t, 32)         \
	X(uint64, uint64_t, 64) X(int64, int64_t, 64) X(size, size_t, 64)                \
	X(ptrdiff, ptrdiff_t, 64)

#define XBRTIME_DECLARE_ATOMIC(name, type, operation)                                    \
	type xbrtime_##name##_atomic_##operation(type *dest, type value, int pe);
#define XBRTIME_DECLARE(name, type, width)                                               \
	XBRTIME_DECLARE_ATOMIC(name, type, add) XBRTIME_DECLARE_ATOMIC(name, type, xor)  \
	XBRTIME_DECLARE_ATOMIC(name, type, and) XBRTIME_DECLARE_ATOMIC(name, type, or)   \
	XBRTIME_DECLARE_ATOMIC(name, type, min) XBRTIME_DECLARE_ATOMIC(name, type, max)  \
	type xbrtime_##name##_atomic_compare_swap(type *dest, type expected, type value, \
						  int pe);
XBRTIME_ATOMIC_TYPES(XBRTIME_DECLARE)
#undef XBRTIME_DECLARE
#undef XBRTIME_DECLARE_ATOMIC

#ifdef __cplusplus
}
#endif
#endif
