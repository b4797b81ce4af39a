/* A conjugate-gradient solve after MiniFE: hexahedral elements give a matrix of 27 points a row,
 * kept in compressed rows (doubles, 32-bit columns and offsets); matrix and vectors are allocations
 * of their own.
 *   cg malloc|terrace|memkind:KINDS THREADS POINTS_AN_EDGE ITERATIONS
 * Prints the seconds of the iterations, the residual, and where pages lie. What is computed does
 * not depend on where. */
#include "place.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int edge;
static size_t rows;

/* The 27-point Laplacian: 26 on the diagonal, -1 to each neighbour; rows at the border have
 * fewer. */
static int row_of(size_t row, int32_t *columns, double *values)
{
    int x = (int)(row % edge), y = (int)(row / edge % edge), z = (int)(row / edge / edge), n = 0;
    for (int dz = -1; dz <= 1; dz++) {
        for (int dy = -1; dy <= 1; dy++) {
            for (int dx = -1; dx <= 1; dx++) {
                int i = x + dx, j = y + dy, k = z + dz;
                if (i < 0 || j < 0 || k < 0 || i >= edge || j >= edge || k >= edge)
                    continue;
                columns[n] = (k * edge + j) * edge + i;
                values[n++] = dx || dy || dz ? -1.0 : 26.0;
            }
        }
    }
    return n;
}

static int32_t entries_of(size_t row)
{
    int at[3] = {(int)(row % edge), (int)(row / edge % edge), (int)(row / edge / edge)}, n = 1;
    for (int d = 0; d < 3; d++)
        n *= 3 - (at[d] == 0) - (at[d] == edge - 1);
    return n;
}

static double dot(const double *u, const double *v)
{
    double sum = 0;
    /* In parts of equal rows, so that the sum does not depend on who is first. */
    double part[64] = {0};
#pragma omp parallel for schedule(static)
    for (int p = 0; p < 64; p++) {
        double s = 0;
        for (size_t i = rows * (size_t)p / 64; i < rows * ((size_t)p + 1) / 64; i++)
            s += u[i] * v[i];
        part[p] = s;
    }
    for (int p = 0; p < 64; p++)
        sum += part[p];
    return sum;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr,
            "usage: cg malloc|terrace|memkind:KINDS THREADS POINTS_AN_EDGE ITERATIONS\n");
        return 2;
    }
    int threads = atoi(argv[2]), iterations = atoi(argv[4]);
    edge = atoi(argv[3]);
    rows = (size_t)edge * edge * edge;
    size_t most = (size_t)(3 * edge - 2) * (3 * edge - 2) * (3 * edge - 2);
    place_threads(threads);
    place_open(argv[1]);
    /* Bytes an iteration: the matrix is read once; p is gathered, updated and summed, r and x
     * updated, Ap written. */
    double *restrict values = place_array("values", most * sizeof *values, 1, 1, 0);
    int32_t *restrict columns = place_array("columns", most * sizeof *columns, 1, 1, 0);
    int32_t *restrict starts = place_array("starts", (rows + 1) * sizeof *starts, 1, 1, 0);
    double *restrict x = place_array("x", rows * sizeof *x, 1, 1, 1);
    double *restrict r = place_array("r", rows * sizeof *r, 1, 3, 1);
    double *restrict p = place_array("p", rows * sizeof *p, 1, 4, 1);
    double *restrict ap = place_array("ap", rows * sizeof *ap, 1, 2, 1);
    place_commit();

    /* Threads touch first what they will work on. */
    int32_t at = 0;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < rows; i++)
        starts[i] = 0;
    for (size_t i = 0; i < rows; i++) {
        starts[i] = at;
        at += entries_of(i);
    }
    starts[rows] = at;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < rows; i++) {
        row_of(i, columns + starts[i], values + starts[i]);
        x[i] = 0.0;
        r[i] = p[i] = 1.0;
        ap[i] = 0.0;
    }

    double rr = dot(r, r), first = rr;
    place_mark_begin();
    double began = place_now();
    for (int round = 0; round < iterations; round++) {
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < rows; i++) {
            double s = 0;
            for (int32_t k = starts[i]; k < starts[i + 1]; k++)
                s += values[k] * p[columns[k]];
            ap[i] = s;
        }
        double alpha = rr / dot(p, ap);
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < rows; i++) {
            x[i] += alpha * p[i];
            r[i] -= alpha * ap[i];
        }
        double now = dot(r, r), beta = now / rr;
        rr = now;
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < rows; i++)
            p[i] = r[i] + beta * p[i];
    }
    double seconds = place_now() - began;
    place_mark_end();
    printf("seconds %.6f\nresidual %.17g\n", seconds, sqrt(rr / first));
    place_show();
    return isfinite(rr) ? 0 : 1;
}
