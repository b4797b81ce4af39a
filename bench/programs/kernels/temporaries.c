// Expressions over arrays, as array languages evaluate them: each step gathers from a table by an
// index into one array, multiplies that by another into a second, sums it up, and frees both.
// usage: temporaries SEED TABLE_MIB ARRAY_MIB STEPS THREADS
#include "kernel.h"

static uint64_t *table, *index_of, *factors, *gathered, *product, entries, words;

static void gather_share(struct share *s) {
    for (uint64_t i = s->from; i < s->to; i++) gathered[i] = table[index_of[i]];
}

static void multiply_share(struct share *s) {
    for (uint64_t i = s->from; i < s->to; i++) product[i] = gathered[i] * factors[i];
}

static void sum_share(struct share *s) {
    uint64_t sum = 0;
    for (uint64_t i = s->from; i < s->to; i++) sum += product[i];
    s->result = sum;
}

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), mib = argument(argc, argv, 2, 100);
    uint64_t array = argument(argc, argv, 3, 40), steps = argument(argc, argv, 4, 20), sum = 0;
    uint64_t threads = argument(argc, argv, 5, 1);
    words = (array << 20) / sizeof *table;
    entries = (mib << 20) / sizeof *table;
    index_of = allocate(words * sizeof *index_of);
    for (uint64_t i = 0; i < words; i++) index_of[i] = random_below(&seed, entries);
    factors = allocate(words * sizeof *factors);
    for (uint64_t i = 0; i < words; i++) factors[i] = next_random(&seed);
    table = allocate(entries * sizeof *table);
    for (uint64_t i = 0; i < entries; i++) table[i] = i ^ seed;
    for (uint64_t step = 0; step < steps; step++) {
        gathered = allocate(words * sizeof *gathered);
        in_parallel(threads, words, seed, gather_share);
        product = allocate(words * sizeof *product);
        in_parallel(threads, words, seed, multiply_share);
        sum += in_parallel(threads, words, seed, sum_share);
        free(product);
        free(gathered);
    }
    printf("temporaries %016lx\n", (unsigned long)sum);
    return 0;
}
