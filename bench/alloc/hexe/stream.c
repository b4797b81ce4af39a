/* STREAM as hexe's authors ran it (section V-B): all four kernels write a; priorities 2, 1, 1.
 *   stream malloc|terrace|memkind:KINDS THREADS MIB_OF_ALL_ARRAYS ROUNDS
 * Prints bytes a second by kernel, counted as STREAM counts, best of the rounds, and their average;
 * then where pages lie. */
#include "place.h"
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: stream malloc|terrace|memkind:KINDS THREADS MIB ROUNDS\n");
        return 2;
    }
    int threads = atoi(argv[2]), rounds = atoi(argv[4]);
    size_t n = strtoul(argv[3], NULL, 10) * 1024 * 1024 / 3 / sizeof(double);
    place_threads(threads);
    place_open(argv[1]);
    double *restrict a = place_array("a", n * sizeof *a, 2, 1, 1);
    double *restrict b = place_array("b", n * sizeof *b, 1, 1, 1);
    double *restrict c = place_array("c", n * sizeof *c, 1, 1, 1);
    place_commit();
    const double q = 3.0;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        a[i] = 0.0, b[i] = 2.0, c[i] = 1.0;

    double best[4] = {1e99, 1e99, 1e99, 1e99};
    place_mark_begin();
    for (int round = 0; round < rounds; round++) {
        double t[5];
        t[0] = place_now();
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n; i++)
            a[i] = b[i];
        t[1] = place_now();
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n; i++)
            a[i] = q * b[i];
        t[2] = place_now();
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] + c[i];
        t[3] = place_now();
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] + q * c[i];
        t[4] = place_now();
        for (int k = 0; k < 4; k++) {
            if (t[k + 1] - t[k] < best[k])
                best[k] = t[k + 1] - t[k];
        }
    }
    place_mark_end();

    static const char *names[] = {"copy", "scale", "add", "triad"};
    static const int touched[] = {2, 2, 3, 3};
    double sum = 0;
    for (int k = 0; k < 4; k++) {
        double rate = touched[k] * (double)n * sizeof(double) / best[k];
        printf("%s %.0f\n", names[k], rate);
        sum += rate;
    }
    printf("average %.0f\n", sum / 4);
    place_show();
    for (size_t i = 0; i < n; i += 61) {
        if (a[i] != 2.0 + q * 1.0) {
            fprintf(stderr, "a[%zu] is %g\n", i, a[i]);
            return 1;
        }
    }
    return 0;
}
