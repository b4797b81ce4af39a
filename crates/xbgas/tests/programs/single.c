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
