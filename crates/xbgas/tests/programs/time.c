/* What single operations take, in simulated time: prints nanoseconds of element 0. */
#include "xbgas.h"
#include "xbrtime.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WORDS 4096

static uint64_t here[WORDS], there[WORDS];
static uint64_t next_of[WORDS];

static long long now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ll + time.tv_nsec;
}

/* Dependent loads: each brings the place of the next. */
static uint64_t chase(int steps)
{
	uint64_t at = 0;
	for (int i = 0; i < steps; i++)
		at = (uint64_t)xbgas_load_i64(2, &next_of[at]);
	return at;
}

/* The same, of which every second is of the element's own memory. */
static uint64_t chase_both(int steps)
{
	uint64_t at = 0;
	for (int i = 0; i < steps; i++)
		at = (uint64_t)xbgas_load_i64(1 + (at & 1), &next_of[at]);
	return at;
}

/* The same, by way of a word in memory. */
static uint64_t chase_in_memory(int steps)
{
	volatile uint64_t at = 0;
	for (int i = 0; i < steps; i++)
		at = (uint64_t)xbgas_load_i64(2, &next_of[at]);
	return at;
}

int main(int count, char **words)
{
	if (count != 3 || xbrtime_init() != 0)
		return 9;
	int steps = atoi(words[2]);
	for (uint64_t i = 0; i < WORDS; i++)
		next_of[i] = (i * 5 + 1027) % WORDS;
	memset(here, 1, sizeof here);
	xbrtime_barrier();
	long long start = now();
	uint64_t sum = 0;
	if (xbrtime_mype() == 0) {
		if (!strcmp(words[1], "chase"))
			sum = chase(steps);
		else if (!strcmp(words[1], "both"))
			sum = chase_both(2 * steps);
		else if (!strcmp(words[1], "memory"))
			sum = chase_in_memory(steps);
		else if (!strcmp(words[1], "get"))
			xbrtime_uint64_get(here, there, (size_t)steps, 1, 1);
		else if (!strcmp(words[1], "singles"))
			for (int i = 0; i < steps; i++)
				xbrtime_uint64_get(here + i, there + i, 1, 1, 1);
		else if (!strcmp(words[1], "put"))
			xbrtime_uint64_put(there, here, (size_t)steps, 1, 1);
	}
	if (!strcmp(words[1], "barrier"))
		for (int i = 0; i < steps; i++)
			xbrtime_barrier();
	long long took = now() - start;
	if (xbrtime_mype() == 0)
		printf("%lld %d\n", took, (int)(sum >> 20));
	xbrtime_close();
	return 0;
}
