// Barnes-Hut: forces on bodies of a clustered galaxy by walks over an octree.
// usage: nbody SEED BODIES WALKS THREADS
#include "kernel.h"

struct body { float at[3], mass, force[3]; uint32_t id; float rest[8]; };
struct cell { float centre[3], mass, middle[3], half; int32_t below[8]; };

static struct body *bodies;
static struct cell *cells;
static uint64_t used, count;

static uint64_t new_cell(const float *middle, float half) {
    struct cell *c = &cells[used];
    memset(c, 0, sizeof *c);
    memcpy(c->middle, middle, sizeof c->middle);
    c->half = half;
    return used++;
}

static int octant(const struct cell *c, const float *at) {
    return (at[0] > c->middle[0]) | (at[1] > c->middle[1]) << 1 | (at[2] > c->middle[2]) << 2;
}

// below: 0 nothing, > 0 a cell, < 0 the body ~below.
static void insert(int32_t body) {
    uint64_t at = 0;
    for (int depth = 0; depth < 48; depth++) {
        struct cell *c = &cells[at];
        struct body *b = &bodies[body];
        float all = c->mass + b->mass;
        for (int k = 0; k < 3; k++) c->centre[k] += (b->at[k] - c->centre[k]) * (b->mass / all);
        c->mass = all;
        int o = octant(c, b->at);
        if (c->below[o] == 0) {
            c->below[o] = ~body;
            return;
        }
        if (c->below[o] < 0) {
            struct body *other = &bodies[~c->below[o]];
            float middle[3], half = c->half / 2;
            for (int k = 0; k < 3; k++) middle[k] = c->middle[k] + ((o >> k & 1) ? half : -half);
            uint64_t below = new_cell(middle, half);
            cells[below].mass = other->mass;
            memcpy(cells[below].centre, other->at, sizeof other->at);
            cells[below].below[octant(&cells[below], other->at)] = c->below[o];
            c->below[o] = (int32_t)below;
        }
        at = (uint64_t)c->below[o];
    }
}

static float pull(const struct body *b, const float *at, float mass, float *force) {
    float d[3], square = 1e-6f;
    for (int k = 0; k < 3; k++) {
        d[k] = at[k] - b->at[k];
        square += d[k] * d[k];
    }
    float f = mass / (square * sqrtf(square));
    for (int k = 0; k < 3; k++) force[k] += f * d[k];
    return square;
}

static void walk_share(struct share *s) {
    for (uint64_t i = s->from; i < s->to; i++) {
        struct body *b = &bodies[i * 7 % count];
        int32_t stack[512];
        int top = 0;
        stack[top++] = 0;
        float force[3] = {0, 0, 0};
        while (top > 0) {
            const struct cell *c = &cells[stack[--top]];
            float square = 0;
            for (int k = 0; k < 3; k++) square +=
                (c->centre[k] - b->at[k]) * (c->centre[k] - b->at[k]);
            if (4 * c->half * c->half < 1.2f * square) {
                pull(b, c->centre, c->mass, force);
                continue;
            }
            for (int o = 0; o < 8; o++) {
                if (c->below[o] < 0) pull(b, bodies[~c->below[o]].at, bodies[~c->below[o]].mass,
                    force);
                if (c->below[o] > 0 && top < 512) stack[top++] = c->below[o];
            }
        }
        memcpy(b->force, force, sizeof force);
    }
}

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), walks = argument(argc, argv, 3, 20000);
    uint64_t threads = argument(argc, argv, 4, 1);
    count = argument(argc, argv, 2, 2 << 20);
    bodies = allocate(count * sizeof *bodies);
    cells = allocate(2 * count * sizeof *cells);
    for (uint64_t i = 0; i < count; i++) {
        struct body *b = &bodies[i];
        memset(b, 0, sizeof *b);
        double r = random_unit(&seed), z = 2 * random_unit(&seed) - 1, a =
            6.2831853 * random_unit(&seed);
        double flat = r * r * sqrt(1 - z * z);
        b->at[0] = (float)(flat * cos(a));
        b->at[1] = (float)(flat * sin(a));
        b->at[2] = (float)(r * r * z);
        b->mass = 1.0f / (float)count;
    }
    new_cell((float[]){0, 0, 0}, 1);
    for (uint64_t i = 0; i < count; i++) insert((int32_t)i);
    in_parallel(threads, walks < count ? walks : count, seed, walk_share);
    double sum = 0;
    for (uint64_t i = 0; i < count; i++) sum += fabs((double)bodies[i].force[0]);
    printf("nbody %.6g\n", sum);
    return 0;
}
