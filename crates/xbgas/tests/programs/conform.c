/* Random operations of the run-time library, the same on all elements; a digest after each. */
#include "xbrtime.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 16384

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state >> 16;
}

static uint64_t digest(const unsigned char *bytes)
{
	uint64_t hash = 0xcbf29ce484222325u;
	for (size_t i = 0; i < BYTES; i++)
		hash = (hash ^ bytes[i]) * 0x100000001b3u;
	return hash;
}

struct operation {
	int kind, stride, shift, root;
	size_t count, parts;
	int counts[64], offsets[64];
};

#define DEFINE(name, type)                                                               \
	static void operate_##name(const struct operation *o, type *dest, type *src)     \
	{                                                                                \
		int other = (xbrtime_mype() + o->shift) % xbrtime_num_pes();             \
		switch (o->kind) {                                                       \
		case 0:                                                                  \
			xbrtime_##name##_put(dest, src, o->count, o->stride, other);     \
			break;                                                           \
		case 1:                                                                  \
			xbrtime_##name##_get(dest, src, o->count, o->stride, other);     \
			break;                                                           \
		case 2:                                                                  \
			xbrtime_##name##_put_nb(dest, src, o->count, o->stride, other);  \
			xbrtime_wait();                                                  \
			break;                                                           \
		case 3:                                                                  \
			xbrtime_##name##_get_nb(dest, src, o->count, o->stride, other);  \
			xbrtime_quiet();                                                 \
			break;                                                           \
		case 4:                                                                  \
			xbrtime_##name##_broadcast(dest, src, o->count, o->stride,       \
						   o->root);                             \
			break;                                                           \
		case 5:                                                                  \
			xbrtime_##name##_gather(dest, src, o->counts, o->offsets,        \
						o->parts, o->root);                      \
			break;                                                           \
		case 6:                                                                  \
			xbrtime_##name##_scatter(dest, src, o->counts, o->offsets,       \
						 o->parts, o->root);                     \
			break;                                                           \
		case 7:                                                                  \
			xbrtime_##name##_alltoall(dest, src, o->count);                  \
			break;                                                           \
		case 8:                                                                  \
			xbrtime_##name##_reduce_sum(dest, src, o->count, o->stride,      \
						    o->root);                            \
			break;                                                           \
		case 9:                                                                  \
			xbrtime_##name##_reduce_max(dest, src, o->count, o->stride,      \
						    o->root);                            \
			break;                                                           \
		default:                                                                 \
			xbrtime_##name##_reduce_xor(dest, src, o->count, o->stride,      \
						    o->root);                            \
		}                                                                        \
	}

DEFINE(uint8, uint8_t)
DEFINE(uint16, uint16_t)
DEFINE(uint32, uint32_t)
DEFINE(uint64, uint64_t)

int main(int count, char **words)
{
	if (count != 3 || xbrtime_init() != 0)
		return 9;
	uint64_t common = strtoull(words[1], NULL, 10);
	int rounds = atoi(words[2]), elements = xbrtime_num_pes();
	uint64_t own = common ^ (uint64_t)(xbrtime_mype() + 1) << 32;
	unsigned char *src = xbrtime_malloc(BYTES), *dest = xbrtime_malloc(BYTES);
	for (size_t i = 0; i < BYTES; i++)
		src[i] = (unsigned char)next(&own);
	xbrtime_barrier();
	for (int round = 0; round < rounds; round++) {
		struct operation o = { .kind = (int)(next(&common) % 11) };
		int width = (int)(next(&common) % 4);
		o.count = next(&common) % 40;
		o.stride = 1 + (int)(next(&common) % 4);
		o.shift = (int)(next(&common) % (uint64_t)elements);
		o.root = (int)(next(&common) % (uint64_t)elements);
		for (int pe = 0, at = 0; pe < elements; pe++) {
			o.counts[pe] = (int)(next(&common) % 20);
			o.offsets[pe] = at;
			o.parts += (size_t)o.counts[pe];
			at += o.counts[pe] + (int)(next(&common) % 3);
		}
		if (width == 0)
			operate_uint8(&o, dest, src);
		else if (width == 1)
			operate_uint16(&o, (uint16_t *)dest, (uint16_t *)src);
		else if (width == 2)
			operate_uint32(&o, (uint32_t *)dest, (uint32_t *)src);
		else
			operate_uint64(&o, (uint64_t *)dest, (uint64_t *)src);
		xbrtime_barrier();
		printf("%d %d %016lx\n", round, o.kind, digest(dest));
		xbrtime_barrier();
		unsigned char *swapped = src;
		src = dest;
		dest = swapped;
	}
	xbrtime_close();
	return 0;
}
