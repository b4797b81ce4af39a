/*
 * kmeans: points go to the nearest of some centres, centres to the middle of their points, until
 * almost no point changes sides. The exit status says whether that came about.
 *
 *     cc -O2 -g -pthread -I.../include kmeans.c -o kmeans -lm
 *     terrace crash run -- ./kmeans S
 */
#include "npb.h"

#define DIMENSIONS 34
#define CENTRES 5
#define MOST_ITERATIONS 500

/* Points of the classes; B as many as the larger input of Ren, Wu and Li (2018), table 2. */
static const struct { char name; int points; } classes[] = {
    { 'S', 4000 }, { 'W', 40000 }, { 'A', 494020 }, { 'B', 819200 },
};

static int points;
static float *data;
static int *membership;
static float *centers;
static double *partial; /* of each thread: sums and counts */
static int done, converged;

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

static int nearest(const float *point)
{
    int c, d, best = 0;
    float least = INFINITY;
    for (c = 0; c < CENTRES; c++) {
        float sum = 0;
        for (d = 0; d < DIMENSIONS; d++) {
            float step = point[d] - centers[c * DIMENSIONS + d];
            sum += step * step;
        }
        if (sum < least) {
            least = sum;
            best = c;
        }
    }
    return best;
}

static void *work(void *argument)
{
    int thread = (int)(intptr_t)argument, from, to, it, i, c, d, t;
    double *own = partial + (size_t)thread * CENTRES * (DIMENSIONS + 1);
    npb_share(thread, points, &from, &to);
    for (it = done + 1; it <= MOST_ITERATIONS; it++) {
        double changed = 0;
        memset(own, 0, sizeof *own * CENTRES * (DIMENSIONS + 1));
        for (i = from; i < to; i++) {
            const float *point = data + (size_t)i * DIMENSIONS;
            double *sums;
            c = nearest(point);
            changed += membership[i] != c;
            membership[i] = c;
            sums = own + c * (DIMENSIONS + 1);
            for (d = 0; d < DIMENSIONS; d++)
                sums[d] += point[d];
            sums[DIMENSIONS]++;
        }
        changed = npb_sum(thread, changed);
        if (thread == 0) {
            for (c = 0; c < CENTRES; c++) {
                double sums[DIMENSIONS + 1] = { 0 };
                for (t = 0; t < npb_threads; t++)
                    for (d = 0; d <= DIMENSIONS; d++)
                        sums[d] += partial[((size_t)t * CENTRES + c) * (DIMENSIONS + 1) + d];
                for (d = 0; d < DIMENSIONS && sums[DIMENSIONS] > 0; d++)
                    centers[c * DIMENSIONS + d] = (float)(sums[d] / sums[DIMENSIONS]);
            }
            converged = changed <= points * 0.001;
            done = it;
            cache_line_write_back(&done);
        }
        npb_meet();
        if (converged)
            break;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    char name = npb_arguments(argc, argv, "SWAB");
    int class = 0, i, d;
    uint64_t random = NPB_SEED;
    while (classes[class].name != name)
        class++;
    points = classes[class].points;
    data = allocate((size_t)points * DIMENSIONS, sizeof *data);
    membership = allocate(points, sizeof *membership);
    centers = allocate(CENTRES * DIMENSIONS, sizeof *centers);
    partial = allocate((size_t)npb_threads * CENTRES * (DIMENSIONS + 1), sizeof *partial);
    /* Clouds that overlap, so that it takes a while. */
    for (i = 0; i < points; i++) {
        double cloud = floor(npb_draw(&random) * 8);
        for (d = 0; d < DIMENSIONS; d++)
            data[(size_t)i * DIMENSIONS + d] =
                (float)(npb_draw(&random) * 2 + sin(cloud * (d + 1)) * 0.6);
        membership[i] = -1;
    }
    for (i = 0; i < CENTRES * DIMENSIONS; i++)
        centers[i] = data[i];

    critical_data(centers, "float", CENTRES * DIMENSIONS);
    consistent_data(&done, "int", 1);
    crash_restore();
    if (done < 0 || done > MOST_ITERATIONS)
        return 1;
    write_back_invalidate_cache();
    start_crash();
    npb_run(work);
    end_crash();
    printf("%d iterations: %s\n", done, converged ? "converged" : "did NOT converge");
    return !converged;
}
