/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Kernels on processing elements, each in three ways: raw (extended loads, stores and atomics in
 * the program), calls (put, get and collectives of the run-time library), messages (send and
 * receive through mailboxes). study KERNEL WAY SIZE prints what the kernel took on element 0,
 * nanoseconds of simulated time, and a digest that does not depend on the way.
 */
#include "xbgas.h"
#include "xbrtime.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_PES 16
#define MOST_WORDS 16384

enum way { RAW, CALLS, MESSAGES };

static int me, all;
static enum way way;

static long long now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static uint64_t draw(uint64_t seed)
{
	seed = (seed ^ seed >> 31) * 0x9e3779b97f4a7c15u;
	seed = (seed ^ seed >> 29) * 0xbf58476d1ce4e5b9u;
	return seed ^ seed >> 32;
}

static uint64_t load(int pe, const void *at)
{
	return (uint64_t)xbgas_load_i64((uint64_t)pe + 1, at);
}

static void store(int pe, void *at, uint64_t value)
{
	xbgas_store_i64((uint64_t)pe + 1, at, (int64_t)value);
}

/*
 * Messages: a box at the receiver for each sender. The sender puts the words, then their count; the
 * receiver takes them out and tells the sender that the box is empty.
 */
#define BOX 4096
static uint64_t box[MOST_PES][BOX];
static volatile int32_t box_number[MOST_PES], box_emptied[MOST_PES];
static uint64_t box_count[MOST_PES];
static int32_t sent[MOST_PES], taken[MOST_PES];

static void send(int to, const uint64_t *words, size_t count)
{
	while (box_emptied[to] != sent[to])
		xbrtime_wait_changed(&box_emptied[to], box_emptied[to]);
	xbrtime_uint64_put_nb(box[me], words, count, 1, to);
	/* A put goes to the same place of the receiver: ours is the box of our number there. */
	store(to, &box_count[me], count);
	xbrtime_wait();
	sent[to]++;
	xbgas_store_i32((uint64_t)to + 1, (void *)&box_number[me], sent[to]);
}

static size_t receive(int from, uint64_t *words)
{
	while (box_number[from] == taken[from])
		xbrtime_wait_changed(&box_number[from], taken[from]);
	xbrtime_wait();
	size_t count = box_count[from];
	memcpy(words, box[from], count * sizeof *words);
	taken[from]++;
	xbgas_store_i32((uint64_t)from + 1, (void *)&box_emptied[me], taken[from]);
	return count;
}

/* Words of each element, and room for those of others. */
static uint64_t a[MOST_WORDS], b[MOST_WORDS], c[MOST_WORDS], buffer[MOST_WORDS];

static uint64_t digest(uint64_t sum)
{
	static uint64_t part, whole;
	part = sum;
	xbrtime_uint64_reduce_sum(&whole, &part, 1, 1, 0);
	return whole;
}

/* Figure 3 of the paper, A: element 0 gathers a word from each. */
static uint64_t gather(size_t size)
{
	int counts[MOST_PES], offsets[MOST_PES];
	uint64_t sum = 0;
	for (int pe = 0; pe < all; pe++)
		counts[pe] = 1, offsets[pe] = pe;
	(void)size;
	if (way == CALLS) {
		xbrtime_uint64_gather(buffer, a, counts, offsets, (size_t)all, 0);
	} else if (way == MESSAGES) {
		if (me != 0)
			send(0, a, 1);
		buffer[0] = a[0];
		for (int pe = 1; me == 0 && pe < all; pe++)
			receive(pe, buffer + pe);
	} else if (me == 0) {
		for (int pe = 0; pe < all; pe++)
			buffer[pe] = load(pe, a);
	}
	for (int pe = 0; me == 0 && pe < all; pe++)
		sum += buffer[pe];
	return sum;
}

/* Figure 3, B: element 0 broadcasts a word. */
static uint64_t broadcast(size_t size)
{
	(void)size;
	if (way == CALLS) {
		xbrtime_uint64_broadcast(b, a, 1, 1, 0);
	} else if (way == MESSAGES) {
		for (int pe = 1; me == 0 && pe < all; pe++)
			send(pe, a, 1);
		if (me != 0)
			receive(0, b);
	} else if (me == 0) {
		for (int pe = 1; pe < all; pe++)
			store(pe, b, a[0]);
		xbrtime_wait();
	}
	if (me == 0)
		b[0] = a[0];
	xbrtime_barrier();
	return b[0];
}

/* Buckets for each element, exchanged; what came is given to take. */
static uint64_t bucket[MOST_PES][BOX / MOST_PES];
static size_t filled[MOST_PES];

static void exchange(void (*take)(const uint64_t *, size_t))
{
	for (int step = 0; step < all; step++) {
		int to = (me + step) % all, from = (me + all - step) % all;
		if (step == 0) {
			take(bucket[me], filled[me]);
		} else {
			send(to, bucket[to], filled[to]);
			take(buffer, receive(from, buffer));
		}
		filled[to] = 0;
	}
}

/* GUPS: words of a table, drawn, are changed by exclusive or; size words and as many changes. */
static size_t table_words;

static void change_words(const uint64_t *values, size_t count)
{
	for (size_t i = 0; i < count; i++)
		a[values[i] / (uint64_t)all % table_words] ^= values[i];
}

static uint64_t gups(size_t size)
{
	size_t own = size / (size_t)all;
	table_words = own;
	for (size_t i = 0; i < own; i++) {
		uint64_t value = draw((uint64_t)me << 32 | i);
		int pe = (int)(value % (uint64_t)all);
		uint64_t *word = a + value / (uint64_t)all % own;
		if (way == RAW)
			xbgas_atomic64((uint64_t)pe + 1, word, XBGAS_XOR, value, 0);
		else if (way == CALLS)
			xbrtime_uint64_atomic_xor(word, value, pe);
		else {
			bucket[pe][filled[pe]++] = value;
			/* As HPCC has it, at most 1024 changes wait. */
			if (i % 128 == 127 || i + 1 == own)
				exchange(change_words);
		}
	}
	xbrtime_barrier();
	uint64_t sum = 0;
	for (size_t i = 0; i < own; i++)
		sum += a[i];
	return sum;
}

/* IS: size keys are brought to the element of their range; each counts its own. */
static size_t arrived;

static void take_keys(const uint64_t *keys, size_t count)
{
	memcpy(c + arrived, keys, count * sizeof *keys);
	arrived += count;
}

static uint64_t sort(size_t size)
{
	static uint64_t counts[MOST_PES], others[MOST_PES];
	size_t own = size / (size_t)all, range = 1u << 16;
	arrived = 0;
	for (size_t i = 0; i < own; i++)
		counts[a[i] % range * (uint64_t)all / range]++;
	if (way == MESSAGES) {
		for (size_t i = 0; i < own; i++) {
			uint64_t pe = a[i] % range * (uint64_t)all / range;
			bucket[pe][filled[pe]++] = a[i] % range;
			if (i % 128 == 127 || i + 1 == own)
				exchange(take_keys);
		}
	} else {
		/* Where each element's keys begin at each other. */
		uint64_t at[MOST_PES], ends[MOST_PES];
		if (way == CALLS)
			xbrtime_uint64_alltoall(others, counts, 1);
		xbrtime_barrier();
		for (int pe = 0; way == RAW && pe < all; pe++)
			others[pe] = load(pe, &counts[me]);
		for (int pe = 0; pe < all; pe++)
			arrived += others[pe];
		for (int pe = 0, from = 0; pe < all; from += (int)others[pe], pe++)
			ends[pe] = (uint64_t)from;
		for (int pe = 0; pe < all; pe++)
			store(pe, &b[me], ends[pe]);
		xbrtime_barrier();
		for (int pe = 0; pe < all; pe++)
			at[pe] = b[pe];
		for (size_t i = 0; i < own; i++) {
			uint64_t pe = a[i] % range * (uint64_t)all / range;
			if (way == RAW)
				store((int)pe, &c[at[pe]++], a[i] % range);
			else
				buffer[pe * own + filled[pe]++] = a[i] % range;
		}
		for (int pe = 0; way == CALLS && pe < all; pe++)
			xbrtime_uint64_put_nb(c + at[pe], buffer + (size_t)pe * own, filled[pe], 1,
					      pe);
		xbrtime_barrier();
	}
	uint64_t sum = 0;
	static uint64_t histogram[1 << 10];
	for (size_t i = 0; i < arrived; i++)
		histogram[c[i] & 1023]++;
	for (size_t i = 0; i < 1024; i++)
		sum += histogram[i] * histogram[i] * (i + 1);
	for (size_t i = 0; i < arrived; i++)
		sum += c[i];
	return sum;
}

/* Element 0 follows a chain of size words through all elements' memory. */
static uint64_t chase(size_t size)
{
	uint64_t at = 0, message[3] = { 0 };
	size_t left = size;
	int next = (me + 1) % all, holds = me == 0;
	/* The chain goes from each element to the next; so does the walk, as a message. */
	while (way == MESSAGES) {
		if (!holds)
			receive((me + all - 1) % all, message);
		else
			message[0] = at, message[1] = left;
		if (message[1] > 0) {
			message[0] = a[message[0] / (uint64_t)all];
			if (--message[1] == 0)
				message[2] = (uint64_t)me;
		}
		at = message[0], left = message[1];
		holds = all == 1;
		/* At the end all are told, up to the one before the last that walked. */
		if (all > 1 && !(left == 0 && (uint64_t)next == message[2]))
			send(next, message, 3);
		if (left == 0)
			return me == 0 ? size : 0;
	}
	for (; me == 0 && left > 0; left--) {
		int pe = (int)(at % (uint64_t)all);
		uint64_t *word = a + at / (uint64_t)all;
		if (way == RAW)
			at = load(pe, word);
		else
			xbrtime_uint64_get(&at, word, 1, 1, pe);
	}
	return me == 0 ? size : 0;
}

/* STREAM triad of size words, of which one operand is the next element's. */
static uint64_t stream(size_t size)
{
	size_t own = size / (size_t)all;
	int next = (me + 1) % all, before = (me + all - 1) % all;
	const uint64_t *from = buffer;
	if (way == CALLS)
		xbrtime_uint64_get(buffer, b, own, 1, next);
	else if (way == MESSAGES) {
		for (size_t i = 0; i < own; i += BOX) {
			size_t count = own - i < BOX ? own - i : BOX;
			if (all > 1) {
				send(before, b + i, count);
				receive(next, buffer + i);
			}
		}
		if (all == 1)
			from = b;
	}
	for (size_t i = 0; i < own; i++)
		c[i] = a[i] + 3 * (way == RAW ? load(next, b + i) : from[i]);
	uint64_t sum = 0;
	for (size_t i = 0; i < own; i++)
		sum += c[i];
	return sum;
}

/* Halo exchange: eight sweeps over size words in rows of 64; rows above and below are others'. */
static uint64_t halo(size_t size)
{
	size_t rows = size / 64 / (size_t)all;
	int up = (me + all - 1) % all, down = (me + 1) % all;
	uint64_t *from = a, *to = b, above[64], below[64];
	for (int sweep = 0; sweep < 8; sweep++) {
		uint64_t *last = from + (rows - 1) * 64;
		if (way == CALLS) {
			xbrtime_uint64_get_nb(above, last, 64, 1, up);
			xbrtime_uint64_get_nb(below, from, 64, 1, down);
			xbrtime_wait();
		} else if (way == MESSAGES && all > 1) {
			send(down, last, 64);
			receive(up, above);
			send(up, from, 64);
			receive(down, below);
		} else {
			for (int i = 0; i < 64; i++) {
				above[i] = load(up, last + i);
				below[i] = load(down, from + i);
			}
		}
		for (size_t row = 0; row < rows; row++)
			for (size_t i = 0; i < 64; i++) {
				uint64_t *at = from + row * 64 + i;
				uint64_t over = row == 0 ? above[i] : at[-64];
				uint64_t under = row + 1 == rows ? below[i] : at[64];
				to[row * 64 + i] = (*at * 2 + over + under) >> 2;
			}
		if (way != MESSAGES)
			xbrtime_barrier();
		uint64_t *swapped = from;
		from = to;
		to = swapped;
	}
	uint64_t sum = 0;
	for (size_t i = 0; i < rows * 64; i++)
		sum += from[i];
	return sum;
}

/* Breadth-first search of size vertices with eight edges each; vertex v is on element v % all. */
static uint64_t level_now, next_count;

static void visit(const uint64_t *vertices, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t *level = a + vertices[i] / (uint64_t)all;
		if (*level == 0) {
			*level = level_now;
			c[next_count++] = vertices[i];
		}
	}
}

static void reach(uint64_t vertex)
{
	int pe = (int)(vertex % (uint64_t)all);
	uint64_t *level = a + vertex / (uint64_t)all;
	if (way == RAW) {
		uint64_t object = (uint64_t)pe + 1;
		if (xbgas_atomic64(object, level, XBGAS_COMPARE_SWAP, level_now, 0) == 0)
			store(pe, c + xbgas_atomic64(object, &next_count, XBGAS_ADD, 1, 0), vertex);
	} else if (way == CALLS) {
		if (xbrtime_uint64_atomic_compare_swap(level, 0, level_now, pe) == 0) {
			uint64_t at = xbrtime_uint64_atomic_add(&next_count, 1, pe);
			xbrtime_uint64_put_nb(c + at, &vertex, 1, 1, pe);
		}
	} else {
		bucket[pe][filled[pe]++] = vertex;
	}
}

static uint64_t search(size_t size)
{
	static uint64_t found, longest, frontier[MOST_WORDS];
	uint64_t count = 0, sum = 0;
	memset(a, 0, sizeof a);
	xbrtime_barrier();
	level_now = 1;
	if (me == 0)
		a[0] = 1, frontier[count++] = 0;
	longest = 1;
	for (;;) {
		level_now++;
		next_count = 0;
		xbrtime_barrier();
		/* As many vertices at once as fill a bucket; all take part as often. */
		uint64_t turns = way == MESSAGES ? load(0, &longest) : count;
		for (uint64_t i = 0; i < turns; i++) {
			for (uint64_t edge = 0; i < count && edge < 8; edge++)
				reach(draw(frontier[i] * 8 + edge) % size);
			if (way == MESSAGES && (i % 32 == 31 || i + 1 == turns))
				exchange(visit);
		}
		xbrtime_barrier();
		count = next_count;
		memcpy(frontier, c, count * sizeof *c);
		found = longest = 0;
		xbrtime_barrier();
		xbgas_atomic64(1, &found, XBGAS_ADD, count, 0);
		xbgas_atomic64(1, &longest, XBGAS_MAX, count, 0);
		xbrtime_barrier();
		if (load(0, &found) == 0)
			break;
		xbrtime_barrier();
	}
	for (size_t i = 0; i < size / (size_t)all; i++)
		sum += a[i] * (i * (size_t)all + (size_t)me + 1);
	return sum;
}

/* One transfer of size words to or from element 1; as many puts of a word. */
static uint64_t get(size_t size)
{
	if (me == 0)
		xbrtime_uint64_get(buffer, b, size, 1, 1 % all);
	return size;
}

static uint64_t put(size_t size)
{
	if (me == 0)
		xbrtime_uint64_put(buffer, b, size, 1, 1 % all);
	return size;
}

static uint64_t rate(size_t size)
{
	for (size_t i = 0; me == 0 && i < size; i++)
		store(1 % all, buffer + i, i);
	xbrtime_wait();
	return size;
}

static const struct {
	const char *name;
	uint64_t (*run)(size_t);
} kernels[] = {
	{ "gather", gather }, { "broadcast", broadcast }, { "gups", gups }, { "is", sort },
	{ "chase", chase }, { "stream", stream }, { "halo", halo }, { "bfs", search },
	{ "get", get }, { "put", put }, { "rate", rate },
};

int main(int count, char **words)
{
	if (count != 4 || xbrtime_init() != 0)
		return 9;
	me = xbrtime_mype();
	all = xbrtime_num_pes();
	way = !strcmp(words[2], "raw") ? RAW : !strcmp(words[2], "calls") ? CALLS : MESSAGES;
	size_t size = (size_t)atoi(words[3]);
	if (all > MOST_PES || size > MOST_WORDS)
		return 9;
	int chain = !strcmp(words[1], "chase");
	for (uint64_t i = 0; i < MOST_WORDS; i++) {
		/* The same words altogether, whatever the elements; a chain visits each in turn. */
		uint64_t place = i + (uint64_t)me * (size / (size_t)all);
		a[i] = chain ? (i * (uint64_t)all + (uint64_t)me + 1) % size : draw(place + 1) >> 8;
		b[i] = draw(place + MOST_WORDS) >> 8;
	}
	for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
		if (strcmp(kernels[i].name, words[1]))
			continue;
		xbrtime_barrier();
		long long start = now();
		uint64_t sum = kernels[i].run(size);
		if (strcmp(words[1], "get") && strcmp(words[1], "put") && strcmp(words[1], "rate"))
			xbrtime_barrier();
		long long took = now() - start;
		sum = digest(sum);
		if (me == 0)
			printf("%lld %016lx\n", took, sum);
	}
	xbrtime_close();
	return 0;
}
