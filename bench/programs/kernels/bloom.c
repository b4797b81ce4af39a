// Bloom filter: keys are read in order, and bits of a table that was filled last are set and tested
// at random. usage: bloom SEED KEYS FILTER_MIB THREADS
#include "kernel.h"

static uint64_t *keys, *filter, bits;

static uint64_t bit_of(uint64_t key, uint64_t which) {
    uint64_t state = key ^ which << 56;
    return random_below(&state, bits);
}

static void test_share(struct share *s) {
    uint64_t found = 0;
    for (uint64_t i = s->from; i < s->to; i++) {
        uint64_t a = bit_of(keys[i], 1), b = bit_of(keys[i], 2);
        found += filter[a / 64] >> a % 64 & filter[b / 64] >> b % 64 & 1;
    }
    s->result = found;
}

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), n = argument(argc, argv, 2, 16 << 20);
    uint64_t mib = argument(argc, argv, 3, 128), threads = argument(argc, argv, 4, 1);
    keys = allocate(n * sizeof *keys);
    for (uint64_t i = 0; i < n; i++) keys[i] = next_random(&seed);
    bits = mib << 23 < 1ull << 32 ? mib << 23 : (1ull << 32) - 1;
    filter = allocate(mib << 20);
    memset(filter, 0, mib << 20);
    for (uint64_t i = 0; i < n / 4; i++) {
        for (uint64_t which = 1; which <= 2; which++) {
            uint64_t at = bit_of(keys[i], which);
            filter[at / 64] |= 1ull << at % 64;
        }
    }
    printf("bloom %016lx\n", (unsigned long)in_parallel(threads, n, seed, test_share));
    return 0;
}
