// STREAM's four loops, plainly: what gcc -O3 makes of them is what terrace-probe is held against.
//   cc -O3 -fopenmp stream.c -o stream && OMP_NUM_THREADS=2 ./stream MIB_OF_ALL_ARRAYS REPEATS
// Prints "NAME BYTES_PER_SECOND", the median of the repeats, counted as STREAM counts.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static clockid_t which = CLOCK_MONOTONIC;

static double now(void) {
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    long mib = argc > 1 ? atol(argv[1]) : 384;
    int repeats = argc > 2 ? atoi(argv[2]) : 15;
    size_t n = (size_t)mib * 1024 * 1024 / 3 / sizeof(double);
    double *restrict a = malloc(n * sizeof *a), *restrict b = malloc(n * sizeof *b), *restrict c =
        malloc(n * sizeof *c);
    double *times = malloc(4 * (size_t)repeats * sizeof *times);
    if (!a || !b || !c || !times) return 1;
    // One thread by its own time, as the probe does it: other work on the machine does not count.
    if (getenv("OMP_NUM_THREADS") && atoi(getenv("OMP_NUM_THREADS")) == 1) which =
        CLOCK_THREAD_CPUTIME_ID;
    const double s = 3.0;
#pragma omp parallel for
    for (size_t i = 0; i < n; i++) a[i] = 1.0, b[i] = 2.0, c[i] = 0.0;
    // The first round warms up.
    for (int r = -1; r < repeats; r++) {
        double t[5];
        t[0] = now();
#pragma omp parallel for
        for (size_t i = 0; i < n; i++) c[i] = a[i];
        t[1] = now();
#pragma omp parallel for
        for (size_t i = 0; i < n; i++) b[i] = s * c[i];
        t[2] = now();
#pragma omp parallel for
        for (size_t i = 0; i < n; i++) c[i] = a[i] + b[i];
        t[3] = now();
#pragma omp parallel for
        for (size_t i = 0; i < n; i++) a[i] = b[i] + s * c[i];
        t[4] = now();
        for (int k = 0; k < 4 && r >= 0; k++) times[k * repeats + r] = t[k + 1] - t[k];
    }
    static const char *names[] = {"copy", "scale", "add", "triad"};
    static const int arrays[] = {2, 2, 3, 3};
    for (int k = 0; k < 4; k++) {
        qsort(times + k * repeats, (size_t)repeats, sizeof *times, by_value);
        printf("%s %.0f\n", names[k], (double)arrays[k] * n * sizeof(double) / times[k * repeats +
            repeats / 2]);
    }
    // So that nothing is left out as unused.
    return a[n / 2] == 0.0;
}
