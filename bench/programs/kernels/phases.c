// A program drawn from a seed: some arrays, each filled in order or at random, then phases in which
// one of them is read at random (evenly, by Zipf ranks scattered or together, or in a part) while
// another is read in order. usage: phases SEED MIB ACCESSES THREADS
#include "kernel.h"

enum { ARRAYS = 5, LINE_WORDS = 8 };
enum pattern { EVENLY, SCATTERED, TOGETHER, IN_PART, PATTERNS };

static struct array { uint64_t *words, lines; } arrays[ARRAYS];
static struct phase {
    struct array *at_random, *in_order;
    enum pattern pattern;
    double skew;
    uint64_t part, writes;
} now;

// A line of the array that is read at random.
static uint64_t line_of(uint64_t *state) {
    uint64_t lines = now.at_random->lines;
    switch (now.pattern) {
    case SCATTERED: return zipf_rank(state, lines, now.skew) * 0x9e3779b1u % lines;
    case TOGETHER: return zipf_rank(state, lines, now.skew);
    case IN_PART: return random_below(state, lines / now.part);
    default: return random_below(state, lines);
    }
}

static void access_share(struct share *s) {
    uint64_t state = s->seed, sum = 0, ordered = now.in_order->lines * LINE_WORDS;
    for (uint64_t i = s->from; i < s->to; i++) {
        uint64_t *line = now.at_random->words + line_of(&state) * LINE_WORDS;
        sum += line[1] + now.in_order->words[i % ordered];
        if (now.writes && i % now.writes == 0) line[2] ^= i;
    }
    s->result = sum;
}

// Fills an array in order, or its lines in random order until most are.
static void fill(struct array *array, uint64_t *seed) {
    if (next_random(seed) % 2) {
        array->words = allocate(array->lines * LINE_WORDS * sizeof(uint64_t));
        for (uint64_t i = 0; i < array->lines * LINE_WORDS; i++) array->words[i] = i ^ *seed;
        return;
    }
    size_t bytes = array->lines * LINE_WORDS * sizeof(uint64_t);
    array->words = calloc(1, bytes);
    if (!array->words) {
        fprintf(stderr, "no memory for %zu bytes: give a smaller size\n", bytes);
        exit(1);
    }
    for (uint64_t i = 0; i < array->lines; i++)
        array->words[random_below(seed, array->lines) * LINE_WORDS + 1] = i;
}

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), mib = argument(argc, argv, 2, 300);
    uint64_t left = argument(argc, argv, 3, 12000000), threads = argument(argc, argv, 4, 1);
    uint64_t count = 2 + next_random(&seed) % (ARRAYS - 1), sum = 0;
    double shares[ARRAYS], all = 0;
    for (uint64_t a = 0; a < count; a++) all += shares[a] = 0.25 + random_unit(&seed);
    for (uint64_t a = 0; a < count; a++) {
        arrays[a].lines = (uint64_t)((double)(mib << 20) * shares[a] / all / 64);
        fill(&arrays[a], &seed);
    }
    for (uint64_t phases = 1 + next_random(&seed) % 3; phases > 0; phases--) {
        uint64_t first = next_random(&seed) % count, second = (first + 1) % count;
        now = (struct phase){&arrays[first], &arrays[second], next_random(&seed) % PATTERNS,
            0.4 + 0.55 * random_unit(&seed), 2 + next_random(&seed) % 8,
            next_random(&seed) % 2 * 4};
        uint64_t accesses = left / phases;
        sum += in_parallel(threads, accesses, next_random(&seed), access_share);
        left -= accesses;
    }
    printf("phases %016lx\n", (unsigned long)sum);
    return 0;
}
