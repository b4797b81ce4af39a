/*
 * Every function of every type against what this element computes by itself: values are a function
 * of element and place, so that each element knows all of them. Prints what differs.
 */
#include "shmem.h"
#include <string.h>

/* 20 elements three apart and what lies behind them; two for each of 16 elements. */
#define PLACES 72

static int wrong, checked;
static int me, all;

static uint64_t draw(uint64_t seed)
{
	seed = (seed ^ seed >> 31) * 0x9e3779b97f4a7c15u;
	seed = (seed ^ seed >> 29) * 0xbf58476d1ce4e5b9u;
	return seed ^ seed >> 32;
}

/* Small, so that sums and products of floating-point types are exact in any order. */
static uint64_t number(int pe, size_t place, int salt)
{
	return draw((uint64_t)pe * 1000003u + place * 97u + (uint64_t)salt) % 3 + 1;
}

#define CHECK(name, what, condition)                                                     \
	do {                                                                             \
		checked++;                                                               \
		if (!(condition)) {                                                      \
			wrong++;                                                         \
			printf("%d: %s of %s, line %d\n", me, what, name, __LINE__);     \
		}                                                                        \
	} while (0)

#define DEFINE(name, type)                                                               \
	static type name##_src[PLACES], name##_dest[PLACES];   \
	static void fill_##name(int salt)                                                \
	{                                                                                \
		xbrtime_barrier();                                                       \
		for (size_t i = 0; i < PLACES; i++) {                       \
			name##_src[i] = (type)number(me, i, salt);                       \
			name##_dest[i] = (type)0;                                        \
		}                                                                        \
		xbrtime_barrier();                                                       \
	}                                                                                \
	static void transfers_##name(int salt)                                           \
	{                                                                                \
		size_t count = number(0, 5, salt) * 8 - 7 + number(0, 6, salt);          \
		int stride = (int)number(0, 7, salt);                                    \
		int to = (me + 1) % all, from = (me + all - 1) % all;                    \
		size_t ends = count * (size_t)stride + 8;                                \
		fill_##name(salt);                                                       \
		xbrtime_##name##_put(name##_dest, name##_src, count, stride, to);        \
		xbrtime_barrier();                                                       \
		for (size_t i = 0; i < ends; i++) {                                      \
			int moved = i % (size_t)stride == 0 && i / (size_t)stride < count;\
			CHECK(#name, "put", name##_dest[i] ==                            \
			      (moved ? (type)number(from, i, salt) : (type)0));          \
		}                                                                        \
		fill_##name(salt + 1);                                                   \
		xbrtime_##name##_get_nb(name##_dest, name##_src, count, stride, to);     \
		xbrtime_quiet();                                                         \
		for (size_t i = 0; i < ends; i++) {                                      \
			int moved = i % (size_t)stride == 0 && i / (size_t)stride < count;\
			CHECK(#name, "get_nb", name##_dest[i] ==                         \
			      (moved ? (type)number(to, i, salt + 1) : (type)0));        \
		}                                                                        \
		fill_##name(salt + 2);                                                   \
		xbrtime_##name##_broadcast(name##_dest, name##_src, count, stride,       \
					   all - 1);                                     \
		CHECK(#name, "broadcast", name##_dest[(count - 1) * (size_t)stride] ==   \
		      (type)number(all - 1, (count - 1) * (size_t)stride, salt + 2));    \
		fill_##name(salt + 3);                                                   \
		xbrtime_##name##_alltoall(name##_dest, name##_src, 2);                   \
		for (int pe = 0; pe < all; pe++)                                         \
			for (size_t i = 0; i < 2; i++)                                   \
				CHECK(#name, "alltoall", name##_dest[2 * pe + i] ==      \
				      (type)number(pe, 2 * (size_t)me + i, salt + 3));   \
	}

#define REDUCTION(name, type, operation, combine)                                        \
	fill_##name(salt);                                                               \
	xbrtime_##name##_reduce_##operation(name##_dest, name##_src, 3, 2, root);        \
	for (size_t i = 0; i < 6; i++) {                                                 \
		type a = (type)number(0, i, salt);                                       \
		for (int pe = 1; pe < all; pe++) {                                       \
			type b = (type)number(pe, i, salt);                              \
			a = (type)(combine);                                             \
		}                                                                        \
		int moved = me == root && i % 2 == 0;                                    \
		CHECK(#name, "reduce_" #operation, name##_dest[i] == (moved ? a : (type)0));\
	}

#define DEFINE_REDUCTIONS(name, type)                                                    \
	static void reduce_##name(int salt, int root)                                    \
	{                                                                                \
		REDUCTION(name, type, sum, a + b)                                        \
		REDUCTION(name, type, product, a * b)                                    \
		REDUCTION(name, type, min, b < a ? b : a)                                \
		REDUCTION(name, type, max, b > a ? b : a)                                \
	}

#define DEFINE_BITWISE(name, type)                                                       \
	static void reduce_bits_##name(int salt, int root)                               \
	{                                                                                \
		REDUCTION(name, type, and, a & b)                                        \
		REDUCTION(name, type, or, a | b)                                         \
		REDUCTION(name, type, xor, a ^ b)                                        \
	}

/* All elements at once on the words of element 0; what is left does not depend on their order. */
#define DEFINE_ATOMICS(name, type, width)                                                \
	static void atomics_##name(void)                                                 \
	{                                                                                \
		static type word[8];                                                     \
		type seen, high = (type)((type)1 << (width - 1));                        \
		for (int i = 0; i < 8; i++)                                              \
			word[i] = (type)(i == 2 ? -1 : i == 4 ? 100 : 0);                \
		xbrtime_barrier();                                                       \
		for (int i = 0; i < 3; i++)                                              \
			xbrtime_##name##_atomic_add(&word[0], (type)(me + 1), 0);        \
		xbrtime_##name##_atomic_xor(&word[1], (type)1 << me, 0);                 \
		xbrtime_##name##_atomic_and(&word[2], (type)~((type)1 << me), 0);        \
		xbrtime_##name##_atomic_or(&word[3], (type)1 << me, 0);                  \
		xbrtime_##name##_atomic_min(&word[4], (type)(10 + me), 0);               \
		xbrtime_##name##_atomic_max(&word[5], (type)(10 + me), 0);               \
		do                                                                       \
			seen = xbrtime_##name##_atomic_compare_swap(&word[6], (type)me,  \
						(type)(me + 1), 0);                      \
		while (seen != (type)me);                                                \
		if (me == 0)                                                             \
			xbrtime_##name##_atomic_max(&word[7], high, 0);                  \
		xbrtime_barrier();                                                       \
		if (me == 0) {                                                           \
			type bits = (type)(((uint64_t)1 << all) - 1);                    \
			CHECK(#name, "add", word[0] == (type)(3 * all * (all + 1) / 2)); \
			CHECK(#name, "xor", word[1] == bits);                            \
			CHECK(#name, "and", word[2] == (type)~bits);                     \
			CHECK(#name, "or", word[3] == bits);                             \
			CHECK(#name, "min", word[4] == 10);                              \
			CHECK(#name, "max", word[5] == (type)(9 + all));                 \
			CHECK(#name, "compare_swap", word[6] == (type)all);              \
			CHECK(#name, "max of sign", word[7] == ((type)-1 < (type)1 ? 0 : high));\
		}                                                                        \
	}

XBRTIME_TYPES(DEFINE)
XBRTIME_TYPES(DEFINE_REDUCTIONS)
XBRTIME_INTEGER_TYPES(DEFINE_BITWISE)
XBRTIME_ATOMIC_TYPES(DEFINE_ATOMICS)

/* All put to the same range of element 0: each word is one of theirs, and nothing beside it. */
static void overlap(void)
{
	static uint64_t own[40], common[48];
	for (int i = 0; i < 40; i++)
		own[i] = (uint64_t)me + 1;
	xbrtime_barrier();
	xbrtime_uint64_put(common + 4, own, 40, 1, 0);
	xbrtime_barrier();
	for (int i = 0; me == 0 && i < 48; i++)
		CHECK("uint64", "overlap", i < 4 || i >= 44 ? common[i] == 0 :
		      common[i] >= 1 && common[i] <= (uint64_t)all);
}

static void through_shmem(void)
{
	static long sync[1], total, mine[3], many[16], ring;
	static int turn;
	mine[0] = me, mine[1] = 2 * me, mine[2] = 7;
	shmem_barrier_all();
	shmem_long_iput(many, mine, 3, 2, 2, (me + 1) % all);
	shmem_barrier_all();
	int from = (me + all - 1) % all;
	CHECK("long", "iput", many[0] == from && many[1] == 0 && many[3] == 7);
	CHECK("long", "g", shmem_long_g(&mine[1], from) == 2 * from);
	shmem_long_sum_to_all(&total, mine, 1, 0, 0, all, many, sync);
	CHECK("long", "sum_to_all", total == (long)all * (all - 1) / 2);
	shmem_broadcast64(many, mine, 3, 0, 0, 0, all, sync);
	CHECK("long", "broadcast64", me == 0 || (many[1] == 0 && many[2] == 7));
	CHECK("long", "swap", me != 0 || shmem_long_atomic_swap(&ring, 5, 0) == 0);
	/* A token goes around. */
	if (me == 0)
		shmem_int_p(&turn, 1, 1 % all);
	shmem_int_wait_until(&turn, SHMEM_CMP_GE, 1);
	if (me != 0)
		shmem_int_p(&turn, turn + 1, (me + 1) % all);
	shmem_barrier_all();
	CHECK("int", "wait_until", turn == (me == 0 ? all : me));
}

int main(int count, char **words)
{
	int salt = count > 1 ? atoi(words[1]) : 1;
	shmem_init();
	me = shmem_my_pe();
	all = shmem_n_pes();
#define CALL(name, type) transfers_##name(salt += 7);
	XBRTIME_TYPES(CALL)
#undef CALL
#define CALL(name, type) salt += 7, reduce_##name(salt, salt % all);
	XBRTIME_TYPES(CALL)
#undef CALL
#define CALL(name, type) salt += 7, reduce_bits_##name(salt, salt % all);
	XBRTIME_INTEGER_TYPES(CALL)
#undef CALL
#define CALL(name, type, width) atomics_##name();
	XBRTIME_ATOMIC_TYPES(CALL)
#undef CALL
	overlap();
	through_shmem();
	printf("%d wrong of %d\n", wrong, checked);
	shmem_finalize();
	return wrong != 0;
}
