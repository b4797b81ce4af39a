// A pointer chase, plainly: one cycle through elements of 128 bytes in random order.
//   cc -O2 chase.c -o chase && ./chase MIB huge|base REPEATS
// Prints "chase NANOSECONDS", the median of the repeats.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    // By its own time, as the probe does it: other work on the machine does not count.
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static uint64_t seed = 88172645463325252u;
static uint64_t random64(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? strtoul(argv[1], 0, 10) : 256) << 20;
    int huge = argc > 2 && !strcmp(argv[2], "huge");
    int repeats = argc > 3 ? atoi(argv[3]) : 9;
    const size_t element = 128, align = 2 << 20;
    char *raw = mmap(0, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return 1;
    char *base = (char *)(((uintptr_t)raw + align - 1) / align * align);
    madvise(base, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    size_t n = bytes / element;
    uint32_t *order = malloc(n * sizeof *order);
    double *times = malloc((size_t)repeats * sizeof *times);
    if (!order || !times) return 1;
    for (size_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    for (size_t i = n - 1; i > 0; i--) {
        size_t j = random64() % (i + 1);
        uint32_t t = order[i];
        order[i] = order[j], order[j] = t;
    }
    for (size_t i = 0; i < n; i++) *(void **)(base + order[i] * element) = base + order[(i +
        1) % n] * element;
    void **p = (void **)base;
    const long loads = 200000;
    for (int r = -1; r < repeats; r++) {
        double start = now();
        for (long i = 0; i < loads; i++) p = (void **)*p;
        if (r >= 0) times[r] = (now() - start) / loads;
    }
    qsort(times, (size_t)repeats, sizeof *times, by_value);
    printf("chase %.3f\n", times[repeats / 2]);
    return p == 0;
}
