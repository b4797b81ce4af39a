// An iteration whose state is made anew by each step: products of gathered elements are kept in a
// large array, summed up by rows into the next state, and freed with the last one.
// usage: iterates SEED STATE_MIB ARRAY_MIB STEPS THREADS
#include "kernel.h"

static uint64_t *state, *next, *index_of, *product, entries, words, row;

static void gather_share(struct share *s) {
    for (uint64_t i = s->from; i < s->to; i++) product[i] = state[index_of[i]] ^ i;
}

static void sum_share(struct share *s) {
    for (uint64_t j = s->from; j < s->to; j++) {
        uint64_t sum = 0;
        for (uint64_t k = 0; k < row; k++) sum += product[j * row + k];
        next[j] = sum;
        s->result += sum;
    }
}

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), mib = argument(argc, argv, 2, 16);
    uint64_t array = argument(argc, argv, 3, 64), steps = argument(argc, argv, 4, 6), sum = 0;
    uint64_t threads = argument(argc, argv, 5, 1);
    if (mib < 1 || array < mib) {
        fprintf(stderr, "ARRAY_MIB %lu below STATE_MIB %lu, or that is 0: give at least as much\n",
                (unsigned long)array, (unsigned long)mib);
        return 1;
    }
    entries = (mib << 20) / sizeof *state;
    row = array / mib;
    words = entries * row;
    index_of = allocate(words * sizeof *index_of);
    for (uint64_t i = 0; i < words; i++) index_of[i] = random_below(&seed, entries);
    uint64_t *input = allocate(words * sizeof *input);
    for (uint64_t i = 0; i < words; i++) input[i] = next_random(&seed);
    state = allocate(entries * sizeof *state);
    for (uint64_t j = 0; j < entries; j++) state[j] = input[j * row];
    for (uint64_t step = 0; step < steps; step++) {
        product = allocate(words * sizeof *product);
        in_parallel(threads, words, seed, gather_share);
        next = allocate(entries * sizeof *next);
        sum += in_parallel(threads, entries, seed, sum_share);
        free(product);
        free(state);
        state = next;
    }
    printf("iterates %016lx\n", (unsigned long)sum);
    return 0;
}
