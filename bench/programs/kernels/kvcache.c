// The key-value cache of a language model: sessions of different lengths, of which a few are active
// at a time; each token reads the weights and the session's keys and values, and appends to them.
// usage: kvcache SEED SESSIONS TOKENS THREADS
#include "kernel.h"

enum { DIM = 128, LAYERS = 4, CONTEXT = 1024 };
static float *weights, *cache;
static uint64_t sessions;
static uint32_t *length;

static float dot(const float *a, const float *b, uint64_t n) {
    float sums[4] = {0, 0, 0, 0};
    for (uint64_t i = 0; i < n; i += 4) {
        for (int k = 0; k < 4; k++) sums[k] += a[i + (uint64_t)k] * b[i + (uint64_t)k];
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

static void token(uint64_t session, float *x) {
    for (uint64_t layer = 0; layer < LAYERS; layer++) {
        float *rows = cache + (session * LAYERS + layer) * CONTEXT * DIM;
        float out[DIM] = {0}, total = 1e-6f;
        for (uint32_t t = 0; t < length[session]; t++) {
            float score = dot(x, rows + t * DIM, DIM);
            score = 1 / (1 + score * score);
            total += score;
            for (int k = 0; k < DIM; k += 16) out[k] += score * rows[t * DIM + (uint32_t)k];
        }
        const float *w = weights + layer * 4 * DIM * DIM;
        float y[DIM];
        for (int r = 0; r < DIM; r++) y[r] = dot(w + r * DIM, x, DIM) / DIM + out[r] / total;
        memcpy(x, y, sizeof y);
        if (length[session] < CONTEXT) memcpy(rows + length[session] * DIM, x, sizeof y);
    }
    if (length[session] < CONTEXT) length[session]++;
}

static void decode_share(struct share *s) {
    float x[DIM];
    uint64_t active[4];
    double sum = 0;
    for (int k = 0; k < DIM; k++) x[k] = (float)k / DIM;
    for (int a = 0; a < 4; a++) active[a] = random_below(&s->seed, sessions);
    for (uint64_t t = s->from; t < s->to; t++) {
        if (t % 64 == 0) active[t / 64 % 4] = scatter(zipf_rank(&s->seed, sessions, 0.6), sessions);
        token(active[t % 4], x);
        sum += x[0];
    }
    s->result = (uint64_t)(int64_t)(sum * 1e3);
}

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), tokens = argument(argc, argv, 3, 4000);
    sessions = argument(argc, argv, 2, 128);
    uint64_t row = (uint64_t)LAYERS * CONTEXT * DIM;
    weights = allocate(LAYERS * 4 * DIM * DIM * sizeof *weights);
    cache = allocate(sessions * row * sizeof *cache);
    length = allocate(sessions * sizeof *length);
    for (int i = 0; i < LAYERS * 4 * DIM * DIM; i++) weights[i] = (float)random_unit(&seed) - 0.5f;
    for (uint64_t s = 0; s < sessions; s++) {
        length[s] = (uint32_t)(CONTEXT / 2 + random_below(&seed, CONTEXT / 2));
        for (uint64_t l = 0; l < LAYERS; l++) {
            float *rows = cache + s * row + l * CONTEXT * DIM;
            for (uint64_t i = 0; i < length[s] * (uint64_t)DIM; i++) rows[i] =
                (float)(i % 61) / 61 - 0.5f;
        }
    }
    // One thread decodes: sessions would race for a row otherwise.
    printf("kvcache %016lx\n", (unsigned long)in_parallel(1, tokens, seed, decode_share));
    return 0;
}
