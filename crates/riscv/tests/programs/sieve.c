/* Primes, queens and a checksum: integer work and recursion. */
#include <stdint.h>
#include <stdio.h>

static unsigned char composite[200000];

static int queens(int n, unsigned columns, unsigned left, unsigned right)
{
	unsigned all = (1u << n) - 1, free = all & ~(columns | left | right);
	int found = columns == all;
	while (free) {
		unsigned one = free & -free;
		free ^= one;
		found += queens(n, columns | one, (left | one) << 1, (right | one) >> 1);
	}
	return found;
}

int main(void)
{
	int primes = 0;
	uint32_t crc = ~0u;
	for (int i = 2; i < 200000; i++) {
		if (composite[i])
			continue;
		primes++;
		for (long j = (long)i * i; j < 200000; j += i)
			composite[j] = 1;
	}
	for (int i = 0; i < 200000; i++) {
		crc ^= composite[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0xedb88320u & -(crc & 1));
	}
	printf("%d %08x %d\n", primes, ~crc, queens(8, 0, 0, 0));
	return 0;
}
