/*
 * npb-cg: the smallest eigenvalue of a random sparse matrix by inverse iteration, each system
 * solved by 25 steps of conjugate gradients (RNR-94-007, section 2.2.3; sizes, iterations and
 * eigenvalues of the classes: NPB 3.4). Verification decides the exit status.
 *
 *     cc -O2 -g -pthread -I.../include cg.c -o cg -lm
 *     terrace crash run -- ./cg S
 */
#include "npb.h"

#define INNER 25
#define CONDITION 0.1

static const struct {
    char name;
    int rows, drawn, iterations;
    double shift, zeta;
} classes[] = {
    { 'S', 1400, 7, 15, 10.0, 8.5971775078648 },
    { 'W', 7000, 8, 15, 12.0, 10.362595087124 },
    { 'A', 14000, 11, 15, 20.0, 17.130235054029 },
    { 'B', 75000, 13, 75, 60.0, 22.712745482631 },
};

static int rows, drawn, iterations;
static double shift;
static int *starts, *columns;
static double *values;
static double *x, *z, *p, *q, *r;
static double zeta;
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

static int by_column(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* The matrix: the sum of w_i v_i v_i' over sparse vectors v_i, and (condition - shift) I. */
static void make_matrix(void)
{
    int stride = drawn + 1, i, j, k, power = 1, next = 0;
    int *place = allocate((size_t)rows * stride, sizeof *place);
    double *value = allocate((size_t)rows * stride, sizeof *value);
    int *length = allocate(rows, sizeof *length), *first = allocate(rows + 2, sizeof *first);
    int *users, *row = allocate(rows, sizeof *row), *seen = allocate(rows, sizeof *seen);
    double *sums = allocate(rows, sizeof *sums), *weight = allocate(rows, sizeof *weight);
    double ratio = pow(CONDITION, 1.0 / rows), w = 1.0;
    uint64_t random = NPB_SEED;
    size_t room = (size_t)rows * stride * stride;

    npb_draw(&random); /* the benchmark's first number is not used */
    while (power < rows)
        power *= 2;
    for (i = 0; i < rows; i++, w *= ratio) {
        int *at = place + (size_t)i * stride, n = 0;
        double *v = value + (size_t)i * stride;
        weight[i] = w;
        while (n < drawn) {
            double number = npb_draw(&random);
            int where = (int)(npb_draw(&random) * power);
            for (k = 0; k < n && at[k] != where; k++)
                ;
            if (where < rows && k == n) {
                at[n] = where;
                v[n++] = number;
            }
        }
        for (k = 0; k < n && at[k] != i; k++)
            ;
        at[k] = i;
        v[k] = 0.5;
        length[i] = k == n ? n + 1 : n;
        for (k = 0; k < length[i]; k++)
            first[at[k] + 2]++;
    }
    for (i = 0; i < rows; i++)
        first[i + 2] += first[i + 1];
    users = allocate((size_t)first[rows + 1], sizeof *users);
    for (i = 0; i < rows; i++)
        for (k = 0; k < length[i]; k++)
            users[first[place[i * stride + k] + 1]++] = i * stride + k;

    starts = allocate(rows + 1, sizeof *starts);
    columns = allocate(room, sizeof *columns);
    values = allocate(room, sizeof *values);
    for (i = 0; i < rows; i++) {
        int count = 0;
        for (j = first[i]; j < first[i + 1]; j++) {
            int vector = users[j] / stride;
            double scaled = value[users[j]] * weight[vector];
            for (k = 0; k < length[vector]; k++) {
                int c = place[vector * stride + k];
                if (seen[c] != i + 1) {
                    seen[c] = i + 1;
                    sums[c] = 0;
                    row[count++] = c;
                }
                sums[c] += scaled * value[vector * stride + k];
                if (c == i && vector == i)
                    sums[c] += CONDITION - shift;
            }
        }
        qsort(row, count, sizeof *row, by_column);
        starts[i] = next;
        for (k = 0; k < count; k++, next++) {
            columns[next] = row[k];
            values[next] = sums[row[k]];
        }
    }
    starts[rows] = next;
    free(place), free(value), free(length), free(first), free(users);
    free(row), free(seen), free(sums), free(weight);
}

static double dot(int from, int to, const double *a, const double *b)
{
    double sum = 0;
    int i;
    for (i = from; i < to; i++)
        sum += a[i] * b[i];
    return sum;
}

static void multiply(int from, int to, const double *vector, double *product)
{
    int i, k;
    for (i = from; i < to; i++) {
        double sum = 0;
        for (k = starts[i]; k < starts[i + 1]; k++)
            sum += values[k] * vector[columns[k]];
        product[i] = sum;
    }
}

/* z = A^-1 x, nearly. */
static void conjugate_gradients(int thread, int from, int to)
{
    double rho;
    int step, i;
    for (i = from; i < to; i++) {
        q[i] = z[i] = 0;
        r[i] = p[i] = x[i];
    }
    rho = npb_sum(thread, dot(from, to, r, r));
    for (step = 0; step < INNER; step++) {
        double alpha, before = rho, beta;
        multiply(from, to, p, q);
        alpha = rho / npb_sum(thread, dot(from, to, p, q));
        for (i = from; i < to; i++) {
            z[i] += alpha * p[i];
            r[i] -= alpha * q[i];
        }
        rho = npb_sum(thread, dot(from, to, r, r));
        beta = rho / before;
        for (i = from; i < to; i++)
            p[i] = r[i] + beta * p[i];
        npb_meet();
    }
}

static void *work(void *argument)
{
    int thread = (int)(intptr_t)argument, from, to, it, i;
    npb_share(thread, rows, &from, &to);
    for (it = done + 1; it <= iterations; it++) {
        double xz, length;
        conjugate_gradients(thread, from, to);
        xz = npb_sum(thread, dot(from, to, x, z));
        length = 1.0 / sqrt(npb_sum(thread, dot(from, to, z, z)));
        for (i = from; i < to; i++)
            x[i] = length * z[i];
        npb_meet();
        if (thread == 0) {
            zeta = shift + 1.0 / xz;
            done = it;
            cache_line_write_back(&done);
        }
        npb_meet();
    }
    return NULL;
}

int main(int argc, char **argv)
{
    char name = npb_arguments(argc, argv, "SWAB");
    int i, class = 0, good;
    while (classes[class].name != name)
        class++;
    rows = classes[class].rows, drawn = classes[class].drawn;
    iterations = classes[class].iterations, shift = classes[class].shift;
    make_matrix();
    x = allocate(rows, sizeof *x), z = allocate(rows, sizeof *z), p = allocate(rows, sizeof *p);
    q = allocate(rows, sizeof *q), r = allocate(rows, sizeof *r);
    for (i = 0; i < rows; i++)
        x[i] = 1.0;

    critical_data(x, "double", rows);
    critical_data(z, "double", rows);
    critical_data(p, "double", rows);
    critical_data(q, "double", rows);
    critical_data(r, "double", rows);
    consistent_data(&done, "int", 1);
    crash_restore();
    if (done < 0 || done > iterations) {
        printf("iteration %d is none of this class\n", done);
        return 1;
    }
    write_back_invalidate_cache();
    start_crash();
    npb_run(work);
    end_crash();

    good = npb_close(zeta, classes[class].zeta, 1e-10);
    printf("zeta %.13f, published %.13f: %s\n", zeta, classes[class].zeta,
           good ? "verification successful" : "verification FAILED");
    return !good;
}
