// Sequence alignment by seeds: an index of all words of a genome, then reads with errors that are
// looked up and compared in place. usage: align SEED BASES READS THREADS
#include "kernel.h"

enum { WORD = 12, READ = 100 };
static const uint64_t WORDS = 1ull << (2 * WORD);
static uint8_t *genome;
static uint32_t *first, *places;
static uint64_t bases;

static void align_share(struct share *s) {
    uint64_t sum = 0;
    for (uint64_t i = s->from; i < s->to; i++) {
        // Reads come from few genes more often than from the rest.
        uint64_t start = zipf_rank(&s->seed, bases - READ, 0.6);
        uint8_t read[READ];
        memcpy(read, genome + start, READ);
        for (int error = 0; error < 3; error++) read[random_below(&s->seed, READ)] ^= 1;
        uint64_t best = 0, where = 0;
        for (int at = 0; at + WORD <= READ; at += 2 * WORD) {
            uint64_t word = 0;
            for (int k = 0; k < WORD; k++) word = word << 2 | read[at + k];
            uint32_t from = first[word], to = first[word + 1];
            for (uint32_t p = from; p < to && p < from + 16; p++) {
                if (places[p] < (uint32_t)at || places[p] - (uint32_t)at + READ > bases) continue;
                const uint8_t *there = genome + places[p] - at;
                uint64_t same = 0;
                for (int k = 0; k < READ; k++) same += read[k] == there[k];
                if (same > best) {
                    best = same;
                    where = places[p] - (uint64_t)at;
                }
            }
        }
        sum += best + where;
    }
    s->result = sum;
}

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), reads = argument(argc, argv, 3, 200000);
    uint64_t threads = argument(argc, argv, 4, 1);
    bases = argument(argc, argv, 2, 24 << 20);
    genome = allocate(bases);
    for (uint64_t i = 0; i < bases; i++) {
        genome[i] = (uint8_t)(next_random(&seed) >> 62);
    }
    first = calloc(WORDS + 2, sizeof *first);
    places = allocate(bases * sizeof *places);
    if (!first) return 1;
    uint64_t word = 0;
    for (uint64_t i = 0; i < bases; i++) {
        word = (word << 2 | genome[i]) & (WORDS - 1);
        if (i + 1 >= WORD) first[word + 2]++;
    }
    for (uint64_t w = 2; w <= WORDS + 1; w++) first[w] += first[w - 1];
    for (uint64_t i = word = 0; i < bases; i++) {
        word = (word << 2 | genome[i]) & (WORDS - 1);
        if (i + 1 >= WORD) places[first[word + 1]++] = (uint32_t)(i + 1 - WORD);
    }
    printf("align %016lx\n", (unsigned long)in_parallel(threads, reads, seed, align_share));
    return 0;
}
