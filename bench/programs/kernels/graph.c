// PageRank (pull) or breadth-first search over a graph with a power-law degree distribution. The
// edge list is built first, turned into compressed rows, and freed, as graph frameworks do; or it
// is kept.
// usage: graph SEED pagerank|bfs LOG2_VERTICES EDGES ROUNDS keep|free
#include "kernel.h"

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), n = 1ull << argument(argc, argv, 3, 20);
    const char *what = argc > 2 ? argv[2] : "pagerank";
    uint64_t m = argument(argc, argv, 4, 12 << 20), rounds = argument(argc, argv, 5, 4);
    uint32_t(*edges)[2] = allocate(m * sizeof *edges);
    for (uint64_t e = 0; e < m; e++) {
        uint64_t bits = next_random(&seed);
        double a = (double)(bits >> 40) * 0x1p-24, b = (double)(bits & 0xffffff) * 0x1p-24;
        edges[e][0] = (uint32_t)scatter((uint64_t)((double)n * a * a * a), n);
        edges[e][1] = (uint32_t)scatter((uint64_t)((double)n * b * b), n);
    }
    // In-edges of each vertex.
    uint64_t *first = calloc(n + 2, sizeof *first);
    uint32_t *out = calloc(n, sizeof *out), *from = allocate(m * sizeof *from);
    if (!first || !out) return 1;
    for (uint64_t e = 0; e < m; e++) {
        first[edges[e][1] + 2]++;
        out[edges[e][0]]++;
    }
    for (uint64_t v = 2; v <= n + 1; v++) first[v] += first[v - 1];
    for (uint64_t e = 0; e < m; e++) from[first[edges[e][1] + 1]++] = edges[e][0];
    if (!(argc > 6 && !strcmp(argv[6], "keep"))) free(edges);
    double sum = 0;
    if (!strcmp(what, "bfs")) {
        uint32_t *level = allocate(n * sizeof *level), *queue = allocate(n * sizeof *queue);
        for (uint64_t r = 0; r < rounds; r++) {
            memset(level, 0xff, n * sizeof *level);
            uint64_t head = 0, tail = 0;
            uint32_t start = (uint32_t)random_below(&seed, n);
            level[start] = 0;
            queue[tail++] = start;
            while (head < tail) {
                uint32_t v = queue[head++];
                for (uint64_t e = first[v]; e < first[v + 1]; e++) {
                    if (level[from[e]] != UINT32_MAX) continue;
                    level[from[e]] = level[v] + 1;
                    queue[tail++] = from[e];
                }
            }
            sum += (double)tail + (double)level[queue[tail - 1]];
        }
    } else {
        double *rank = allocate(n * sizeof *rank), *share = allocate(n * sizeof *share);
        for (uint64_t v = 0; v < n; v++) rank[v] = 1.0 / (double)n;
        for (uint64_t r = 0; r < rounds; r++) {
            for (uint64_t v = 0; v < n; v++) share[v] = rank[v] / (out[v] ? out[v] : 1);
            for (uint64_t v = 0; v < n; v++) {
                double in = 0;
                for (uint64_t e = first[v]; e < first[v + 1]; e++) in += share[from[e]];
                rank[v] = 0.15 / (double)n + 0.85 * in;
            }
        }
        for (uint64_t v = 0; v < n; v++) sum += rank[v];
    }
    printf("graph %s %.9g\n", what, sum);
    return 0;
}
