/*
 * The largest eigenvalue of a matrix by power iteration. The matrix is I + 3 u u', u of length 1:
 * the eigenvalue is 4, all others are 1, and each iteration divides the error of its estimate by
 * 16. A restart from the first guess needs most of them again. Only x is handed from one iteration
 * to the next.
 */
#include <math.h>
#include <stdint.h>

#include "terrace_crash.h"

#define ROWS 64
#define ITERATIONS 12

static double x[ROWS], y[ROWS];
static int done;

int main(void)
{
    double u = 1 / sqrt(ROWS), eigenvalue = 0;
    int it, i;
    x[0] = 1;
    critical_data(x, "double", ROWS);
    critical_data(y, "double", ROWS);
    consistent_data(&done, "int", 1);
    crash_restore();
    write_back_invalidate_cache();
    start_crash();
    for (it = done + 1; it <= ITERATIONS; it++) {
        double along = 0, length = 0;
        for (i = 0; i < ROWS; i++)
            along += u * x[i];
        for (i = 0; i < ROWS; i++)
            y[i] = x[i] + 3 * along * u;
        for (i = 0; i < ROWS; i++)
            length += y[i] * y[i];
        length = sqrt(length);
        eigenvalue = length;
        for (i = 0; i < ROWS; i++)
            x[i] = y[i] / length;
        done = it;
        cache_line_write_back(&done);
    }
    end_crash();
    printf("%.15f\n", eigenvalue);
    return fabs(eigenvalue - 4) > 1e-10;
}
