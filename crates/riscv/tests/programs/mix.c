/* Integer, floating-point and library work, threads of its own: a digest on one line each. */
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_fast64_t total;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t under_lock;

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void *add(void *from)
{
	uint64_t state = (uintptr_t)from;
	for (int i = 0; i < 20000; i++) {
		uint64_t value = next(&state) & 0xffff;
		atomic_fetch_add(&total, value);
		pthread_mutex_lock(&lock);
		under_lock += value;
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

int main(int count, char **arguments)
{
	uint64_t state = 88172645463325252u, digest = 0;
	for (int i = 0; i < 200000; i++) {
		uint64_t a = next(&state), b = next(&state) >> (i & 63);
		digest = digest * 31 + (b ? a / b + a % b : 7);
		digest ^= (uint64_t)((int64_t)a >> (b & 63));
		digest += (unsigned)((int32_t)a * (int32_t)b);
	}
	printf("integers %016llx\n", (unsigned long long)digest);
	double sum = 0;
	float single = 1;
	for (int i = 1; i < 20000; i++) {
		sum += sin(i) * exp(-i / 1e4) / sqrt(i) + fma(i, 1e-3, sum * 1e-6);
		single = single * 1.0001f + (float)i / 3.0f - (float)(int)single;
	}
	printf("floats %a %a flags %d\n", sum, single, fetestexcept(FE_ALL_EXCEPT));
	uint32_t *values = malloc(50000 * sizeof *values);
	for (int i = 0; i < 50000; i++)
		values[i] = (uint32_t)next(&state);
	qsort(values, 50000, sizeof *values, compare);
	for (int i = 0; i < 50000; i++)
		digest = digest * 33 + values[i];
	printf("sorted %016llx\n", (unsigned long long)digest);
	free(values);
	pthread_t threads[4];
	for (uintptr_t i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, add, (void *)(i + 1));
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	printf("threads %llu %d\n", (unsigned long long)total, total == under_lock);
	for (int i = 1; i < count; i++)
		printf("argument %s\n", arguments[i]);
	return 7;
}
