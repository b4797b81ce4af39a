/*
 * What the NAS benchmarks share: random numbers (Bailey et al., "The NAS Parallel Benchmarks",
 * RNR-94-007, section 2.3), threads that meet, sums, the command line.
 */
#ifndef NPB_H
#define NPB_H

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terrace_crash.h"

#define NPB_MASK ((UINT64_C(1) << 46) - 1)
#define NPB_MULTIPLIER UINT64_C(1220703125)
#define NPB_SEED UINT64_C(314159265)
#define NPB_MOST_THREADS 64

static inline double npb_draw(uint64_t *state)
{
    *state = *state * NPB_MULTIPLIER & NPB_MASK;
    return (double)*state / (double)(NPB_MASK + 1);
}

/* Threads and where they meet. Each adds to a sum in a line of its own. */
static int npb_threads = 1;
static pthread_barrier_t npb_barrier;
static struct { double value; char pad[56]; } npb_partial[NPB_MOST_THREADS];

static inline void npb_meet(void)
{
    if (npb_threads > 1)
        pthread_barrier_wait(&npb_barrier);
}

/* The sum of what all threads hand in, the same in each and in every run. */
static inline double npb_sum(int thread, double value)
{
    double sum = 0;
    int i;
    npb_partial[thread].value = value;
    npb_meet();
    for (i = 0; i < npb_threads; i++)
        sum += npb_partial[i].value;
    npb_meet();
    return sum;
}

/* This thread's part of `count` things. */
static inline void npb_share(int thread, int count, int *from, int *to)
{
    *from = (int)((int64_t)count * thread / npb_threads);
    *to = (int)((int64_t)count * (thread + 1) / npb_threads);
}

static inline void npb_run(void *(*work)(void *))
{
    pthread_t others[NPB_MOST_THREADS];
    int i;
    pthread_barrier_init(&npb_barrier, NULL, (unsigned)npb_threads);
    for (i = 1; i < npb_threads; i++)
        if (pthread_create(&others[i], NULL, work, (void *)(intptr_t)i)) {
            fprintf(stderr, "a thread cannot be started\n");
            exit(2);
        }
    work((void *)0);
    for (i = 1; i < npb_threads; i++)
        pthread_join(others[i], NULL);
}

/* CLASS and THREADS from the command line. */
static inline char npb_arguments(int argc, char **argv, const char *classes)
{
    char class = argc > 1 ? argv[1][0] : classes[0];
    npb_threads = argc > 2 ? atoi(argv[2]) : 1;
    if (!strchr(classes, class) || npb_threads < 1 || npb_threads > NPB_MOST_THREADS) {
        fprintf(stderr, "usage: %s [CLASS [THREADS]], one of the classes %s\n", argv[0], classes);
        exit(2);
    }
    return class;
}

static inline int npb_close(double value, double published, double tolerance)
{
    return fabs((value - published) / published) <= tolerance;
}

#endif
