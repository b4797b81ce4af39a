/* Integer work for bench/riscv.sh: sorting, a search tree, a checksum, matrices, a hash table. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 88172645463325252u;

static uint64_t random_word(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

struct node {
	uint64_t key;
	struct node *child[2];
};

static uint64_t sort(size_t count)
{
	uint64_t *words = malloc(count * sizeof *words);
	for (size_t i = 0; i < count; i++)
		words[i] = random_word();
	qsort(words, count, sizeof *words, compare);
	uint64_t middle = words[count / 2];
	free(words);
	return middle;
}

static uint64_t tree(size_t count)
{
	struct node *nodes = calloc(count, sizeof *nodes), *root = NULL;
	uint64_t depth = 0;
	for (size_t i = 0; i < count; i++) {
		struct node **at = &root;
		nodes[i].key = random_word();
		while (*at) {
			at = &(*at)->child[nodes[i].key > (*at)->key];
			depth++;
		}
		*at = &nodes[i];
	}
	free(nodes);
	return depth;
}

static uint64_t checksum(size_t bytes)
{
	uint32_t table[256], sum = ~0u;
	for (uint32_t i = 0; i < 256; i++) {
		table[i] = i;
		for (int bit = 0; bit < 8; bit++)
			table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
	}
	for (size_t i = 0; i < bytes; i++)
		sum = sum >> 8 ^ table[(sum ^ (uint8_t)(i * 7)) & 255];
	return ~sum;
}

static uint64_t matrices(int n)
{
	int64_t *a = malloc(n * n * sizeof *a), *b = malloc(n * n * sizeof *b), sum = 0;
	for (int i = 0; i < n * n; i++) {
		a[i] = random_word() & 255;
		b[i] = random_word() & 255;
	}
	for (int i = 0; i < n; i++)
		for (int j = 0; j < n; j++) {
			int64_t cell = 0;
			for (int k = 0; k < n; k++)
				cell += a[i * n + k] * b[k * n + j];
			sum += cell ^ i ^ j;
		}
	free(a);
	free(b);
	return sum;
}

static uint64_t table(size_t count)
{
	size_t slots = 1 << 18;
	uint64_t *keys = calloc(slots, sizeof *keys), probes = 0;
	for (size_t i = 0; i < count; i++) {
		uint64_t key = random_word() % (slots / 2) + 1;
		size_t at = key * 0x9e3779b97f4a7c15u >> 46;
		while (keys[at] && keys[at] != key) {
			at = (at + 1) % slots;
			probes++;
		}
		keys[at] = key;
	}
	free(keys);
	return probes;
}

int main(void)
{
	printf("%llx %llx %llx %llx %llx\n", (unsigned long long)sort(200000),
	       (unsigned long long)tree(150000), (unsigned long long)checksum(4000000),
	       (unsigned long long)matrices(180), (unsigned long long)table(1500000));
}
