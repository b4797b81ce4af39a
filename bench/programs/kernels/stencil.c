// Seven-point stencil over a cube, from one array into the other and back.
// usage: stencil SEED EDGE ROUNDS THREADS
#include "kernel.h"

static double *now, *then;
static uint64_t edge;

static void sweep_share(struct share *s) {
    uint64_t row = edge, plane = edge * edge;
    for (uint64_t z = s->from + 1; z < s->to + 1; z++) {
        for (uint64_t y = 1; y < edge - 1; y++) {
            for (uint64_t x = 1; x < edge - 1; x++) {
                const double *c = now + z * plane + y * row + x;
                then[z * plane + y * row + x] =
                    0.4 * c[0] + 0.1 * (c[-1] + c[1] + c[-row] + c[row] + c[-plane] + c[plane]);
            }
        }
    }
}

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), rounds = argument(argc, argv, 3, 6);
    uint64_t threads = argument(argc, argv, 4, 1);
    edge = argument(argc, argv, 2, 256);
    uint64_t cells = edge * edge * edge;
    now = allocate(cells * sizeof *now);
    then = allocate(cells * sizeof *then);
    for (uint64_t i = 0; i < cells; i++) now[i] = then[i] = random_unit(&seed);
    for (uint64_t r = 0; r < rounds; r++) {
        in_parallel(threads, edge - 2, seed, sweep_share);
        double *swap = now;
        now = then;
        then = swap;
    }
    double sum = 0;
    for (uint64_t i = 0; i < cells; i += 97) sum += now[i];
    printf("stencil %.12g\n", sum);
    return 0;
}
