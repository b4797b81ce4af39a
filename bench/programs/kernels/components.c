// Connected components by union-find: random edges in a list, gone through twice; most of them lie
// between few nodes. usage: components SEED NODES EDGES
#include "kernel.h"

static uint32_t *parent, (*edges)[2];

static uint32_t root_of(uint32_t node) {
    while (parent[node] != node) node = parent[node] = parent[parent[node]];
    return node;
}

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), n = argument(argc, argv, 2, 16 << 20);
    uint64_t m = argument(argc, argv, 3, 16 << 20), joined = 0, alike = 0;
    edges = allocate(m * sizeof *edges);
    for (uint64_t i = 0; i < m; i++) {
        edges[i][0] = (uint32_t)random_below(&seed, n);
        double x = random_unit(&seed);
        edges[i][1] = (uint32_t)((double)n * x * x * x);
    }
    parent = allocate(n * sizeof *parent);
    for (uint64_t node = 0; node < n; node++) parent[node] = (uint32_t)node;
    for (uint64_t i = 0; i < m; i++) {
        uint32_t a = root_of(edges[i][0]), b = root_of(edges[i][1]);
        if (a != b) joined++;
        parent[a < b ? b : a] = a < b ? a : b;
    }
    for (uint64_t i = 0; i < m; i++) alike += root_of(edges[i][0]) == root_of(edges[i][1]);
    printf("components %lu %lu\n", (unsigned long)(n - joined), (unsigned long)alike);
    return 0;
}
