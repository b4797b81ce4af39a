/* One behaviour of the run-time library or of the machine, by name. */
#include "xbgas.h"
#include "xbrtime.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long long static_word;

static void hello(void)
{
	printf("hello from %d of %d\n", xbrtime_mype(), xbrtime_num_pes());
}

static void symmetric(void)
{
	char *a = xbrtime_malloc(1), *b = xbrtime_malloc(4097), *c = xbrtime_malloc(4096);
	printf("%p %p %p\n", (void *)a, (void *)b, (void *)c);
	memset(b, 7, 4097);
	xbrtime_free(b);
	char *again = xbrtime_malloc(8192);
	printf("%d %d %d %d\n", again == b, again[0], xbrtime_malloc(0) == NULL,
	       xbrtime_malloc((size_t)1 << 40) == NULL);
	int local;
	printf("%d %d %d %d\n", xbrtime_addr_accessible(c, 0),
	       xbrtime_addr_accessible(&static_word, 0), xbrtime_addr_accessible(&local, 0),
	       xbrtime_addr_accessible(c, xbrtime_num_pes()));
}

/* Figure 3 of the paper: element 0 gathers by raw loads, and broadcasts by raw stores. */
static void figure(void)
{
	static_word = 100 + xbrtime_mype();
	xbrtime_barrier();
	if (xbrtime_mype() == 0) {
		long long sum = 0;
		for (int pe = 0; pe < xbrtime_num_pes(); pe++)
			sum += xbgas_load_i64((uint64_t)pe + 1, &static_word);
		for (int pe = 0; pe < xbrtime_num_pes(); pe++)
			xbgas_store_i64((uint64_t)pe + 1, &static_word, sum);
	}
	xbrtime_barrier();
	printf("%lld\n", static_word);
}

/* Every kind of access through the header, of the element's own memory as object 0. */
static void accesses(void)
{
	static_word = -2;
	printf("%d %d %d %d %d\n", xbgas_load_i8(0, &static_word),
	       xbgas_load_u8(0, &static_word), xbgas_load_i16(0, &static_word),
	       xbgas_load_u16(0, &static_word), xbgas_load_i32(0, &static_word));
	xbgas_store_i16(0, &static_word, 0x1234);
	xbgas_esd(0, (long long *)&static_word, xbgas_eld(0, &static_word) + 1);
	printf("%llx\n", static_word);
	xbgas_set_object(77);
	printf("%lu\n", xbgas_get_object());
}

/* Object 100 is a file: its first word, and one more in its second. */
static void file(void)
{
	if (xbrtime_mype() == 1)
		xbgas_store_i64(100, (void *)8, xbgas_load_i64(100, (void *)0) + 1);
	xbrtime_barrier();
	printf("%lld\n", (long long)xbgas_load_i64(100, (void *)8));
	xbrtime_barrier();
}

/* Object 200 is a part of element 0's memory. */
static void part(void)
{
	static_word = 40 + xbrtime_mype();
	xbrtime_barrier();
	printf("%d\n", (int)xbgas_load_i64(200, (void *)0));
	xbrtime_barrier();
}

#if XBGAS_DIALECT == 2024
/* Bulk transfers: every second word of eight, there and back. */
static void bulk(void)
{
	static uint64_t from[16], to[16], back[16];
	uint64_t next = (uint64_t)((xbrtime_mype() + 1) % xbrtime_num_pes()) + 1;
	for (int i = 0; i < 16; i++)
		from[i] = (uint64_t)(100 * xbrtime_mype() + i);
	xbrtime_barrier();
	xbgas_ebsd(next, to, from, 8, 2);
	xbrtime_barrier();
	xbgas_ebld(next, back, to, 8, 2);
	printf("%lu %lu %lu %lu %lu\n", to[0], to[1], to[14], back[14], back[15]);
	xbgas_ebld(next, back, from, 0, 2);
	xbrtime_barrier();
}
#endif

int main(int count, char **words)
{
	const char *name = count > 1 ? words[1] : "";
	if (xbrtime_init() != 0)
		return 9;
	if (!strcmp(name, "hello"))
		hello();
	else if (!strcmp(name, "symmetric"))
		symmetric();
	else if (!strcmp(name, "figure"))
		figure();
	else if (!strcmp(name, "accesses"))
		accesses();
	else if (!strcmp(name, "spins"))
		for (volatile int on = 1; on;)
			;
	else if (!strcmp(name, "file"))
		file();
	else if (!strcmp(name, "part"))
		part();
#if XBGAS_DIALECT == 2024
	else if (!strcmp(name, "bulk"))
		bulk();
#endif
	else if (xbrtime_mype() == 1) {
		long long word = 0;
		if (!strcmp(name, "reserved"))
			__asm__ volatile(".insn i 0x77, 3, x5, 0(x9)" : : : "x5");
		else if (!strcmp(name, "object"))
			xbgas_load_i64(99, &static_word);
		else if (!strcmp(name, "unmapped"))
			xbgas_store_i32(1, (void *)0x40, 5);
		else if (!strcmp(name, "truncated"))
			xbgas_load_i64(1, (char *)0x1010000000 - 4);
		else if (!strcmp(name, "nobody"))
			xbrtime_longlong_put(&static_word, &word, 1, 1, -1);
		else if (!strcmp(name, "outside"))
			xbgas_load_i64(200, (void *)4);
		else if (!strcmp(name, "heaps"))
			xbrtime_malloc(1);
		else if (!strcmp(name, "counts"))
			xbrtime_long_gather(&(long){ 0 }, &(long){ 0 },
					    (int[]){ 1, 1, 1, 1 }, (int[4]){ 0 }, 5, 0);
		else if (!strcmp(name, "atomic"))
			xbrtime_long_atomic_add(&(long){ 0 }, 1, 4);
		else if (!strcmp(name, "exits"))
			exit(3);
		else if (!strcmp(name, "aborts"))
			abort();
		else if (!strcmp(name, "bulk"))
			__asm__ volatile(".insn r4 0x5b, 0, 0, x5, x6, x7, x28" : : : "x5");
	}
	xbrtime_close();
	return 0;
}
