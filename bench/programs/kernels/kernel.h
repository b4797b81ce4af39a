// Shared parts of the kernels: random numbers from a seed, Zipf ranks, arguments, memory.
// Each kernel prints one line that depends on its input alone, so that runs can be compared.
#ifndef KERNEL_H
#define KERNEL_H
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
static inline uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// Below n, n at most 2^32.
static inline uint64_t random_below(uint64_t *state, uint64_t n) {
    return ((next_random(state) >> 32) * n) >> 32;
}

static inline double random_unit(uint64_t *state) {
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

// Zipf ranks below n with exponent s < 1, by inverting the integral of the density.
static inline uint64_t zipf_rank(uint64_t *state, uint64_t n, double s) {
    uint64_t rank = (uint64_t)((double)n * pow(random_unit(state), 1.0 / (1.0 - s)));
    return rank < n ? rank : n - 1;
}

// Scatters ranks over 0..n, so that neighbours in rank are not neighbours in memory. n a power of
// 2.
static inline uint64_t scatter(uint64_t rank, uint64_t n) {
    return (rank * 0x9e3779b97f4a7c15u) & (n - 1);
}

static inline uint64_t argument(int argc, char **argv, int at, uint64_t otherwise) {
    return at < argc ? strtoull(argv[at], NULL, 0) : otherwise;
}

static inline void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory) {
        fprintf(stderr, "no memory for %zu bytes: give a smaller size\n", bytes);
        exit(1);
    }
    return memory;
}

struct share {
    uint64_t from, to, seed, result;
    void (*work)(struct share *);
};

static void *run_share(void *share) {
    ((struct share *)share)->work(share);
    return NULL;
}

// Divides 0..n among threads and gives the sum of their results.
static inline uint64_t in_parallel(uint64_t threads, uint64_t n, uint64_t seed,
                                   void (*work)(struct share *)) {
    enum { MOST = 64 };
    struct share shares[MOST];
    pthread_t handles[MOST];
    uint64_t sum = 0;
    if (threads < 1 || threads > MOST) threads = 1;
    for (uint64_t t = 0; t < threads; t++) {
        shares[t] = (struct share){n * t / threads, n * (t + 1) / threads, seed + t, 0, work};
        if (t > 0 && pthread_create(&handles[t], NULL, run_share, &shares[t])) {
            fprintf(stderr, "no thread %lu\n", (unsigned long)t);
            exit(1);
        }
    }
    work(&shares[0]);
    for (uint64_t t = 0; t < threads; t++) {
        if (t > 0) pthread_join(handles[t], NULL);
        sum += shares[t].result;
    }
    return sum;
}
#endif
