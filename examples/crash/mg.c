/*
 * npb-mg: V-cycles of a multigrid solver for a Poisson problem on a periodic grid, its right side
 * zero but for twenty charges (RNR-94-007, section 2.2.2; sizes, smoothers and norms of the
 * classes: NPB 3.4). The residual's norm decides the exit status.
 *
 *     cc -O2 -g -pthread -I.../include mg.c -o mg -lm
 *     terrace crash run --phases 2 -- ./mg S
 */
#include "npb.h"

#define CHARGES 10
#define MOST_LEVELS 10
#define MOST_SIDE 256

static const struct {
    char name;
    int side, iterations;
    double norm;
} classes[] = {
    { 'S', 32, 4, 0.5307707005734e-04 },
    { 'W', 128, 4, 0.6467329375339e-05 },
    { 'A', 256, 4, 0.2433365309069e-05 },
    { 'B', 256, 20, 0.1800564401355e-05 },
};

/* Weights of a point, its face, edge and corner neighbours. */
static const double operator_[4] = { -8.0 / 3, 0, 1.0 / 6, 1.0 / 12 };
static const double restriction[4] = { 0.5, 0.25, 0.125, 0.0625 };
static double smoother[4] = { -3.0 / 8, 1.0 / 32, -1.0 / 64, 0 };

static int levels, side[MOST_LEVELS], iterations;
static size_t offset[MOST_LEVELS], all_points; /* finest level first */
static double *u, *r, *v;
static double norm;
static int done;

static void *allocate(size_t count, size_t size)
{
    void *memory = aligned_alloc(64, (count * size + 63) / 64 * 64);
    if (!memory) {
        fprintf(stderr, "no memory\n");
        exit(2);
    }
    memset(memory, 0, (count * size + 63) / 64 * 64);
    return memory;
}

/* The row of points with these coordinates, on a torus. */
static const double *row_of(const double *grid, int n, int y, int z)
{
    return grid + ((size_t)((z + n) % n) * n + (y + n) % n) * n;
}

/* Weighted sums of all neighbours of a row's points. */
static void stencil(const double *grid, int n, int y, int z, const double w[4], double *out)
{
    const double *c = row_of(grid, n, y, z);
    const double *f0 = row_of(grid, n, y - 1, z), *f1 = row_of(grid, n, y + 1, z);
    const double *f2 = row_of(grid, n, y, z - 1), *f3 = row_of(grid, n, y, z + 1);
    const double *e0 = row_of(grid, n, y - 1, z - 1), *e1 = row_of(grid, n, y + 1, z - 1);
    const double *e2 = row_of(grid, n, y - 1, z + 1), *e3 = row_of(grid, n, y + 1, z + 1);
    double faces[MOST_SIDE], edges[MOST_SIDE];
    int x;
    for (x = 0; x < n; x++) {
        faces[x] = f0[x] + f1[x] + f2[x] + f3[x];
        edges[x] = e0[x] + e1[x] + e2[x] + e3[x];
    }
    for (x = 0; x < n; x++) {
        int b = x ? x - 1 : n - 1, a = x + 1 < n ? x + 1 : 0;
        out[x] = w[0] * c[x] + w[1] * (c[b] + c[a] + faces[x]) +
                 w[2] * (edges[x] + faces[b] + faces[a]) + w[3] * (edges[b] + edges[a]);
    }
}

/* r = right - A u */
static double residual(int thread, int level, const double *right)
{
    int n = side[level], from, to, row, x;
    double sums[MOST_SIDE], square = 0;
    npb_share(thread, n * n, &from, &to);
    for (row = from; row < to; row++) {
        double *out = r + offset[level] + (size_t)row * n;
        stencil(u + offset[level], n, row % n, row / n, operator_, sums);
        for (x = 0; x < n; x++) {
            out[x] = right[(size_t)row * n + x] - sums[x];
            square += out[x] * out[x];
        }
    }
    return npb_sum(thread, square);
}

/* Coarse point c lies on fine point 2 c + 1. */
static void restrict_(int thread, int level)
{
    int n = side[level], fine = side[level - 1], from, to, row, x;
    double sums[MOST_SIDE];
    npb_share(thread, n * n, &from, &to);
    for (row = from; row < to; row++) {
        double *out = r + offset[level] + (size_t)row * n;
        stencil(r + offset[level - 1], fine, 2 * (row % n) + 1, 2 * (row / n) + 1, restriction,
            sums);
        for (x = 0; x < n; x++)
            out[x] = sums[2 * x + 1];
    }
    npb_meet();
}

/* u = u + S r; on the coarsest level, u = S r */
static void smooth(int thread, int level)
{
    int n = side[level], from, to, row, x, coarsest = level + 1 == levels;
    double sums[MOST_SIDE];
    npb_share(thread, n * n, &from, &to);
    for (row = from; row < to; row++) {
        double *out = u + offset[level] + (size_t)row * n;
        stencil(r + offset[level], n, row % n, row / n, smoother, sums);
        for (x = 0; x < n; x++)
            out[x] = coarsest ? sums[x] : out[x] + sums[x];
    }
    npb_meet();
}

/* A fine row from the coarse rows that it lies on or between; added on the finest level. */
static void interpolate(int thread, int level)
{
    int n = side[level], coarse = n / 2, from, to, row, x;
    const double *grid = u + offset[level + 1];
    npb_share(thread, n * n, &from, &to);
    for (row = from; row < to; row++) {
        int y = row % n, z = row / n;
        int y0 = y % 2 ? y / 2 : y / 2 - 1, z0 = z % 2 ? z / 2 : z / 2 - 1;
        const double *a = row_of(grid, coarse, y0, z0), *b = row_of(grid, coarse, y / 2, z0);
        const double *c = row_of(grid, coarse, y0, z / 2), *d = row_of(grid, coarse, y / 2, z / 2);
        double *out = u + offset[level] + (size_t)row * n;
        double left = (a[coarse - 1] + b[coarse - 1] + c[coarse - 1] + d[coarse - 1]) / 4;
        for (x = 0; x < coarse; x++) {
            double here = (a[x] + b[x] + c[x] + d[x]) / 4;
            double even = 0.5 * (left + here);
            out[2 * x] = level ? even : out[2 * x] + even;
            out[2 * x + 1] = level ? here : out[2 * x + 1] + here;
            left = here;
        }
    }
    npb_meet();
}

static void *work(void *argument)
{
    int thread = (int)(intptr_t)argument, it, level;
    double square = 0;
    if (done == 0)
        residual(thread, 0, v);
    for (it = done + 1; it <= iterations; it++) {
        for (level = 1; level < levels; level++)
            restrict_(thread, level);
        smooth(thread, levels - 1);
        for (level = levels - 2; level >= 0; level--) {
            interpolate(thread, level);
            residual(thread, level, level ? r + offset[level] : v);
            smooth(thread, level);
        }
        square = residual(thread, 0, v);
        if (thread == 0) {
            norm = sqrt(square / ((double)side[0] * side[0] * side[0]));
            done = it;
            cache_line_write_back(&done);
        }
        npb_meet();
    }
    return NULL;
}

/* Charges at the places of the ten largest and the ten smallest random numbers. */
static void place_charges(void)
{
    double drawn[2][CHARGES];
    size_t place[2][CHARGES], count = (size_t)side[0] * side[0] * side[0], i;
    uint64_t random = NPB_SEED;
    int have[2] = { 0, 0 }, kind, at;
    for (i = 0; i < count; i++) {
        double number = npb_draw(&random);
        for (kind = 0; kind < 2; kind++) {
            double value = kind ? -number : number;
            if (have[kind] == CHARGES && drawn[kind][CHARGES - 1] >= value)
                continue;
            if (have[kind] < CHARGES)
                have[kind]++;
            for (at = have[kind] - 1; at > 0 && drawn[kind][at - 1] < value; at--) {
                drawn[kind][at] = drawn[kind][at - 1];
                place[kind][at] = place[kind][at - 1];
            }
            drawn[kind][at] = value;
            place[kind][at] = i;
        }
    }
    for (at = 0; at < CHARGES; at++) {
        v[place[0][at]] = 1.0;
        v[place[1][at]] = -1.0;
    }
}

int main(int argc, char **argv)
{
    char name = npb_arguments(argc, argv, "SWAB");
    int class = 0, good, n;
    while (classes[class].name != name)
        class++;
    iterations = classes[class].iterations;
    if (name == 'B') {
        smoother[0] = -3.0 / 17;
        smoother[1] = 1.0 / 33;
        smoother[2] = -1.0 / 61;
    }
    for (n = classes[class].side; n >= 2; n /= 2) {
        side[levels] = n;
        offset[levels++] = all_points;
        all_points += (size_t)n * n * n;
    }
    u = allocate(all_points, sizeof *u);
    r = allocate(all_points, sizeof *r);
    v = allocate((size_t)side[0] * side[0] * side[0], sizeof *v);
    place_charges();

    critical_data(u, "double", all_points);
    critical_data(r, "double", all_points);
    consistent_data(&done, "int", 1);
    crash_restore();
    if (done < 0 || done > iterations)
        return 1;
    write_back_invalidate_cache();
    start_crash();
    npb_run(work);
    end_crash();

    good = npb_close(norm, classes[class].norm, 1e-8);
    printf("norm %.13e, published %.13e: %s\n", norm, classes[class].norm,
           good ? "verification successful" : "verification FAILED");
    return !good;
}
