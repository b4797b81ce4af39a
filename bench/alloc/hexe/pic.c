/* The particle loop of an electromagnetic particle-in-cell program, after VPIC: particles of 32
 * bytes, sorted by cell at first, and for each cell what fields are interpolated from and where
 * currents are summed. Threads have a slab of the grid each, as VPIC's ranks do, but particles that
 * leave a slab come back at its other side instead of changing rank.
 *   pic malloc|terrace|arena:NODES|memkind:KINDS THREADS CELLS_AN_EDGE PLANES_A_THREAD STEPS
 * Prints the seconds of the steps, a sum over all particles, and where pages lie. What is computed
 * does not depend on where. */
#include "place.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 25 to a cell, as the arena paper's runs of VPIC have it. */
enum { A_CELL = 25 };

typedef struct {
    float at[3]; /* in the cell, -1 to 1 */
    int32_t cell;
    float u[3]; /* momentum over mass and the speed of light */
    float weight;
} particle;

/* Fields of a cell: a value and three slopes for each part of the electric one, a value and a slope
 * for the magnetic one's. */
typedef struct {
    float e[3][4], b[3][2], unused[2];
} interpolator;

/* Currents through a cell's faces, four corners for each direction. */
typedef struct {
    float j[3][4];
} accumulator;

static uint64_t drawn(uint64_t n)
{
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    return n ^ (n >> 31);
}

static float uniform(uint64_t n)
{
    return (float)(drawn(n) >> 40) * (2.0f / (1 << 24)) - 1.0f;
}

/* A slab of `planes` planes of edge * edge cells. */
static void push(particle *p, size_t count, const interpolator *f, accumulator *a, int edge,
    int planes)
{
    const float charge = 0.02f, step = 0.1f;
    const int limits[3] = {edge, edge, planes}, strides[3] = {1, edge, edge * edge};
    for (size_t n = 0; n < count; n++, p++) {
        const interpolator *g = f + p->cell;
        float e[3], b[3], middle[3], old[3];
        for (int d = 0; d < 3; d++) {
            float y = p->at[(d + 1) % 3], z = p->at[(d + 2) % 3];
            e[d] = charge * (g->e[d][0] + y * g->e[d][1] + z * (g->e[d][2] + y * g->e[d][3]));
            b[d] = charge * (g->b[d][0] + p->at[d] * g->b[d][1]);
            p->u[d] += e[d];
        }
        /* Boris: half of the electric field, a rotation by the magnetic one, the other half. */
        float square = b[0] * b[0] + b[1] * b[1] + b[2] * b[2], turn = 2.0f / (1.0f + square);
        for (int d = 0; d < 3; d++)
            middle[d] = p->u[d] + p->u[(d + 1) % 3] * b[(d + 2) % 3] - p->u[(d + 2) % 3] * b[(d +
                1) % 3];
        for (int d = 0; d < 3; d++)
            p->u[d] += turn * (middle[(d + 1) % 3] * b[(d + 2) % 3] - middle[(d + 2) % 3] * b[(d +
                1) % 3]) + e[d];
        float gamma = 1.0f / sqrtf(1.0f + p->u[0] * p->u[0] + p->u[1] * p->u[1] +
            p->u[2] * p->u[2]);
        memcpy(old, p->at, sizeof old);
        accumulator *here = a + p->cell;
        int place[3] = {p->cell % edge, p->cell / edge % edge, p->cell / edge / edge};
        for (int d = 0; d < 3; d++) {
            float moved = step * gamma * p->u[d], flow = p->weight * moved;
            float y = old[(d + 1) % 3], z = old[(d + 2) % 3];
            here->j[d][0] += flow * (1.0f - y) * (1.0f - z);
            here->j[d][1] += flow * (1.0f + y) * (1.0f - z);
            here->j[d][2] += flow * (1.0f - y) * (1.0f + z);
            here->j[d][3] += flow * (1.0f + y) * (1.0f + z);
            p->at[d] += 2.0f * moved;
            if (p->at[d] > 1.0f || p->at[d] < -1.0f) {
                int way = p->at[d] > 1.0f ? 1 : -1, to = place[d] + way;
                p->at[d] -= 2.0f * (float)way;
                to = to < 0 ? limits[d] - 1 : to == limits[d] ? 0 : to;
                p->cell += (to - place[d]) * strides[d];
            }
        }
    }
}

/* What flowed changes the electric field. */
static void fields(interpolator *f, accumulator *a, size_t cells)
{
    for (size_t c = 0; c < cells; c++) {
        for (int d = 0; d < 3; d++) {
            for (int corner = 0; corner < 4; corner++)
                f[c].e[d][corner] -= 0.001f * a[c].j[d][corner];
        }
    }
    memset(a, 0, cells * sizeof *a);
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: pic malloc|terrace|arena:NODES|memkind:KINDS THREADS CELLS_AN_EDGE "
            "PLANES_A_THREAD STEPS\n");
        return 2;
    }
    int threads = atoi(argv[2]), edge = atoi(argv[3]), planes = atoi(argv[4]), steps =
        atoi(argv[5]);
    if (threads < 1 || planes < 1 || planes > 1000 || edge < 1 || edge > 1000) {
        fprintf(stderr, "pic: at least a thread, a cell and a plane, at most 1000 cells an edge "
            "and planes\n");
        return 2;
    }
    size_t slab = (size_t)edge * edge * planes, cells = slab * threads, mine = slab * A_CELL;
    place_threads(threads);
    place_open(argv[1]);
    /* A step reads and writes all of each; interpolators and accumulators are read and written for
     * the fields, too. */
    particle *particles = place_array("particles", cells * A_CELL * sizeof *particles, 1, 1, 1);
    interpolator *f = place_array("interpolators", cells * sizeof *f, 1, 2, 1);
    accumulator *a = place_array("accumulators", cells * sizeof *a, 1, 2, 2);
    place_commit();

    /* Threads touch first what they will work on. */
#pragma omp parallel for schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        for (size_t c = 0; c < slab; c++) {
            size_t at = t * slab + c;
            for (int n = 0; n < A_CELL; n++) {
                particle *p = particles + at * A_CELL + n;
                uint64_t seed = (at * A_CELL + n) * 8;
                p->cell = (int32_t)c;
                p->weight = 1.0f;
                for (int d = 0; d < 3; d++) {
                    p->at[d] = uniform(seed + d);
                    p->u[d] = 0.5f * uniform(seed + 4 + d);
                }
            }
            memset(a + at, 0, sizeof *a);
            memset(f + at, 0, sizeof *f);
            f[at].e[0][0] = uniform(at);
            f[at].b[2][0] = 1.0f;
        }
    }

    place_mark_begin();
    double began = place_now();
    for (int step = 0; step < steps; step++) {
#pragma omp parallel for schedule(static, 1)
        for (int t = 0; t < threads; t++) {
            push(particles + t * mine, mine, f + t * slab, a + t * slab, edge, planes);
            fields(f + t * slab, a + t * slab, slab);
        }
    }
    double seconds = place_now() - began;
    place_mark_end();

    double sum = 0;
    for (size_t n = 0; n < cells * A_CELL; n++)
        sum += particles[n].cell + particles[n].at[0] + particles[n].u[0] + particles[n].u[1] +
            particles[n].u[2];
    printf("seconds %.6f\nresidual %.17g\n", seconds, sum);
    place_show();
    return isfinite(sum) ? 0 : 1;
}
