// CUDA C on a CPU, as much of it as the kernels use: each block's threads are contexts that run
// in turn, from one __syncthreads() to the next.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

struct dim3 { unsigned x, y, z; };
struct float4 { float x, y, z, w; };
static dim3 threadIdx, blockIdx, blockDim, gridDim;

#define __global__
#define __device__
#define __shared__ static
#define __constant__
#define __ldg(pointer) (*(pointer))
typedef unsigned long long cudaTextureObject_t;
template <class T> static T tex1Dfetch(cudaTextureObject_t texture, int at)
{
    return ((const T *)texture)[at];
}
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static int atomicAdd(int *to, int value)
{
    int before = *to;
    *to += value;
    return before;
}
alignas(16) float4 placed_shared[1 << 14];

enum { STACK = 32768, THREADS = 1024 };
static ucontext_t scheduler, threads[THREADS];
static bool ended[THREADS];
static char *stacks;
static unsigned current;
static void (*body)();

static void __syncthreads() { swapcontext(&threads[current], &scheduler); }

static void run_thread()
{
    body();
    ended[current] = true;
    swapcontext(&threads[current], &scheduler);
}

static void launch(dim3 grid, dim3 block, void (*kernel)())
{
    unsigned count = block.x * block.y * block.z;
    if (!stacks)
        stacks = (char *)malloc((size_t)STACK * THREADS);
    body = kernel;
    gridDim = grid;
    blockDim = block;
    for (unsigned b = 0; b < grid.x * grid.y * grid.z; b++) {
        blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
        for (unsigned t = 0; t < count; t++) {
            getcontext(&threads[t]);
            threads[t].uc_stack.ss_sp = stacks + (size_t)STACK * t;
            threads[t].uc_stack.ss_size = STACK;
            threads[t].uc_link = &scheduler;
            makecontext(&threads[t], run_thread, 0);
            ended[t] = false;
        }
        for (unsigned left = count; left;) {
            for (current = 0; current < count; current++) {
                if (ended[current])
                    continue;
                threadIdx = {current % block.x, current / block.x % block.y,
                             current / block.x / block.y};
                swapcontext(&scheduler, &threads[current]);
                left -= ended[current];
            }
        }
    }
}

static void *read_array(FILE *from, size_t bytes)
{
    void *data = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (fread(data, 1, bytes, from) != bytes)
        exit(2);
    return data;
}
