/*
 * npb-ft: a diffusion equation in three dimensions, solved in Fourier space: one transform forward,
 * then in each iteration all coefficients evolve, are transformed back, and a checksum is taken
 * (RNR-94-007, section 2.2.4; sizes and checksums of the classes: NPB 3.4). Verification of each
 * iteration decides the exit status. Its phases are those of the paper (section 4.4): evolution,
 * then transforms along the third, second and first dimension.
 *
 *     cc -O2 -g -pthread -I.../include ft.c -o ft -lm
 *     terrace crash run -- ./ft S 1 1                     one thread, one iteration
 */
#include "npb.h"

#define ALPHA 1e-6
#define PI 3.14159265358979323846
#define CHECKED 1024
#define LINES 16

struct point { double re, im; };

static const struct {
    char name;
    int sides[3], iterations;
    double checksums[6][2]; /* of the first iterations */
} classes[] = {
    { 'S', { 64, 64, 64 }, 6,
      { { 554.6087004964, 484.5363331978 }, { 554.6385409190, 486.5304269511 },
        { 554.6148406171, 488.3910722337 }, { 554.5423607415, 490.1273169046 },
        { 554.4255039624, 491.7475857993 }, { 554.2683411903, 493.2597244941 } } },
    { 'W', { 128, 128, 32 }, 6, { { 567.3612178944, 529.3246849175 } } },
    { 'A', { 256, 256, 128 }, 6, { { 504.6735008193, 511.4047905510 } } },
    { 'B', { 512, 256, 256 }, 20, { { 517.7643571579, 507.7803458597 } } },
};

static int sides[3], iterations, points, class_number;
static struct point *u0, *u1;   /* coefficients; transformed */
static double *factors[3];      /* of evolution, by coordinate */
static struct point *roots[3];  /* exp(2 pi i k / n), k below half of n */
static struct point *buffers[NPB_MOST_THREADS];
static int done, wrong;

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

static int reversed(int i, int n)
{
    int result = 0;
    for (; n > 1; n /= 2, i /= 2)
        result = 2 * result + i % 2;
    return result;
}

/* Butterflies on a line in bit-reversed order. */
static void transform_line(struct point *line, int n, const struct point *root, int back)
{
    int half, first, k;
    for (half = 1; half < n; half *= 2)
        for (first = 0; first < n; first += 2 * half)
            for (k = 0; k < half; k++) {
                struct point *a = &line[first + k], *b = &line[first + half + k], t;
                double c = root[k * (n / 2 / half)].re, s = root[k * (n / 2 / half)].im;
                s = back ? -s : s;
                t.re = b->re * c - b->im * s;
                t.im = b->re * s + b->im * c;
                b->re = a->re - t.re, b->im = a->im - t.im;
                a->re += t.re, a->im += t.im;
            }
}

/* All lines along a dimension, several at a time so that cache lines are used whole. */
static void transform(int thread, struct point *array, int dimension, int back)
{
    int n = sides[dimension], nx = sides[0], ny = sides[1], from, to, unit, i, line;
    int each = (nx + LINES - 1) / LINES;
    int units = dimension == 0 ? (ny * sides[2] + LINES - 1) / LINES
              : dimension == 1 ? each * sides[2] : each * ny;
    struct point *buffer = buffers[thread];
    npb_share(thread, units, &from, &to);
    for (unit = from; unit < to; unit++) {
        int outer = unit / each, x = unit % each * LINES, lines, line_step = 1, step;
        size_t first;
        if (dimension == 0) {
            first = (size_t)unit * LINES * nx;
            lines = ny * sides[2] - unit * LINES;
            line_step = nx, step = 1;
        } else {
            lines = nx - x;
            first = dimension == 1 ? (size_t)outer * nx * ny + x : (size_t)outer * nx + x;
            step = dimension == 1 ? nx : nx * ny;
        }
        if (lines > LINES)
            lines = LINES;
        for (i = 0; i < n; i++)
            for (line = 0; line < lines; line++)
                buffer[line * n + reversed(i, n)] =
                    array[first + (size_t)line * line_step + (size_t)i * step];
        for (line = 0; line < lines; line++)
            transform_line(buffer + line * n, n, roots[dimension], back);
        for (i = 0; i < n; i++)
            for (line = 0; line < lines; line++)
                array[first + (size_t)line * line_step + (size_t)i * step] = buffer[line * n + i];
    }
    npb_meet();
}

static void evolve(int thread)
{
    int from, to, row, x, nx = sides[0], ny = sides[1];
    npb_share(thread, ny * sides[2], &from, &to);
    for (row = from; row < to; row++) {
        double factor = factors[1][row % ny] * factors[2][row / ny];
        for (x = 0; x < nx; x++) {
            struct point *p = &u0[(size_t)row * nx + x];
            p->re *= factor * factors[0][x];
            p->im *= factor * factors[0][x];
            u1[(size_t)row * nx + x] = *p;
        }
    }
    npb_meet();
}

static void check(int it)
{
    int nx = sides[0], ny = sides[1], nz = sides[2], j;
    double re = 0, im = 0;
    const double *published = classes[class_number].checksums[it - 1];
    for (j = 1; j <= CHECKED; j++) {
        size_t at = ((size_t)(5 * j % nz) * ny + 3 * j % ny) * nx + j % nx;
        re += u1[at].re;
        im += u1[at].im;
    }
    re /= points, im /= points;
    if (it <= 6 && published[0] != 0.0)
        wrong |= !npb_close(re, published[0], 1e-12) || !npb_close(im, published[1], 1e-12);
    wrong |= !isfinite(re) || !isfinite(im);
    printf("checksum %d: %.10f %.10f\n", it, re, im);
}

static void *work(void *argument)
{
    int thread = (int)(intptr_t)argument, it;
    for (it = done + 1; it <= iterations; it++) {
        if (thread == 0)
            crash_phase(1);
        evolve(thread);
        if (thread == 0)
            crash_phase(2);
        transform(thread, u1, 2, 1);
        if (thread == 0)
            crash_phase(3);
        transform(thread, u1, 1, 1);
        if (thread == 0)
            crash_phase(4);
        transform(thread, u1, 0, 1);
        if (thread == 0) {
            check(it);
            done = it;
            cache_line_write_back(&done);
        }
        npb_meet();
    }
    return NULL;
}

static void *forward(void *argument)
{
    int dimension;
    for (dimension = 0; dimension < 3; dimension++)
        transform((int)(intptr_t)argument, u0, dimension, 0);
    return NULL;
}

static void prepare(void)
{
    uint64_t random = NPB_SEED;
    int d, i;
    for (d = 0; d < 3; d++) {
        int n = sides[d];
        factors[d] = allocate(n, sizeof **factors);
        roots[d] = allocate(n / 2, sizeof **roots);
        for (i = 0; i < n; i++) {
            double k = i >= n / 2 ? i - n : i;
            factors[d][i] = exp(-4.0 * ALPHA * PI * PI * k * k);
        }
        for (i = 0; i < n / 2; i++) {
            roots[d][i].re = cos(2.0 * PI * i / n);
            roots[d][i].im = sin(2.0 * PI * i / n);
        }
    }
    for (i = 0; i < points; i++) {
        u0[i].re = npb_draw(&random);
        u0[i].im = npb_draw(&random);
    }
}

int main(int argc, char **argv)
{
    char name = npb_arguments(argc, argv, "SWAB");
    int i, longest;
    while (classes[class_number].name != name)
        class_number++;
    memcpy(sides, classes[class_number].sides, sizeof sides);
    iterations = argc > 3 ? atoi(argv[3]) : classes[class_number].iterations;
    points = sides[0] * sides[1] * sides[2];
    u0 = allocate(points, sizeof *u0);
    u1 = allocate(points, sizeof *u1);
    longest = sides[0] > sides[1] ? sides[0] : sides[1];
    longest = longest > sides[2] ? longest : sides[2];
    for (i = 0; i < npb_threads; i++)
        buffers[i] = allocate((size_t)LINES * longest, sizeof **buffers);
    prepare();
    npb_run(forward);

    critical_data(u0, "dcomplex", points);
    critical_data(u1, "dcomplex", points);
    consistent_data(&done, "int", 1);
    crash_restore();
    if (done < 0 || done > iterations)
        return 1;
    write_back_invalidate_cache();
    start_crash();
    npb_run(work);
    end_crash();
    printf("%s\n", wrong ? "verification FAILED" : "verification successful");
    return wrong;
}
