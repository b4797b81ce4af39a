/*
 * A sparse matrix times a vector and two vector updates: the shape of the conjugate-gradient
 * kernel, for measuring what recording costs. Not the NAS kernel itself: see `terrace-workload
 * npb-cg`. 14,000 rows of about 130 sorted columns (class A's size). Usage: cg_like [ROUNDS];
 * prints a sum and the CPU seconds of the rounds.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROWS = 14000 };
static int starts[ROWS + 1];
static double x[ROWS], y[ROWS];

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 25, entries = 0;
    int *columns = malloc(sizeof *columns * ROWS * 280);
    double *matrix = malloc(sizeof *matrix * ROWS * 280), sum = 0;
    if (!columns || !matrix)
        return 1;
    for (int row = 0; row < ROWS; row++) {
        starts[row] = entries;
        for (int column = (int)(mix((uint64_t)row) % 100); column < ROWS;
             column += 1 + (int)(mix((uint64_t)row << 20 ^ (uint64_t)column) % 215)) {
            columns[entries] = column;
            matrix[entries++] = 1.0 / (1 + column % 7);
        }
        x[row] = 1;
    }
    starts[ROWS] = entries;
    double began = cpu_seconds();
    for (int round = 0; round < rounds; round++) {
        for (int row = 0; row < ROWS; row++) {
            double s = 0;
            for (int k = starts[row]; k < starts[row + 1]; k++)
                s += matrix[k] * x[columns[k]];
            y[row] = s;
        }
        for (int row = 0; row < ROWS; row++)
            x[row] = 0.5 * x[row] + y[row] * 1e-3;
        for (int row = 0; row < ROWS; row++)
            sum += x[row] * y[row];
    }
    printf("%g %.4f\n", sum, cpu_seconds() - began);
    return 0;
}
