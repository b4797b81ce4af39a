/* Mappings that grow, move, shrink and are protected. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *map(size_t pages)
{
	return mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

int main(void)
{
	char *a = map(4);
	for (int i = 0; i < 4 * 4096; i++)
		a[i] = i * 7;
	char *b = mremap(a, 4 * 4096, 1024 * 4096, MREMAP_MAYMOVE);
	unsigned sum = 0;
	for (int i = 0; i < 4 * 4096; i++)
		sum = sum * 31 + (unsigned char)b[i];
	printf("%u %d\n", sum, b[1000 * 4096]);
	char *c = mremap(b, 1024 * 4096, 2 * 4096, 0);
	printf("%d %d\n", c == b, c[8191]);
	char *to = map(16);
	char *d = mremap(c, 2 * 4096, 8 * 4096, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	printf("%d %d %d\n", d == to, d[8191], d[5 * 4096]);
	printf("%d\n", mremap(d, 4096, 4096, MREMAP_FIXED, d) == MAP_FAILED && errno == EINVAL);
	mprotect(d, 4096, PROT_READ);
	munmap(d + 4096, 4096);
	printf("%d\n", mprotect(d, 3 * 4096, PROT_READ) == -1 && errno == ENOMEM);
	/* A block that realloc grows by remapping. */
	size_t length = 1 << 20;
	unsigned char *block = malloc(length);
	memset(block, 1, length);
	for (; length < 32 << 20; length *= 2) {
		block = realloc(block, 2 * length);
		memset(block + length, 1 + block[length - 1], length);
	}
	unsigned long long total = 0;
	for (size_t i = 0; i < length; i += 4096)
		total += block[i];
	printf("%llu\n", total);
	free(block);
	char *heap = sbrk(0);
	printf("%d %d\n", sbrk(1 << 20) == heap, ((char *)sbrk(0)) - heap == 1 << 20);
	return 3;
}
