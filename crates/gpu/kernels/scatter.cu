// Sums of values by key, over a grid of fixed size.
extern "C" __global__ void scatter(const int *key, const int *value, int *sum, int n, int bins)
{
    int first = blockIdx.x * blockDim.x + threadIdx.x;
    int step = blockDim.x * gridDim.x;
#ifdef TILE_sum
    __shared__ int part[BINS];
    for (int b = threadIdx.x; b < bins; b += blockDim.x)
        part[b] = 0;
    __syncthreads();
    for (int i = first; i < n; i += step)
        atomicAdd(&part[key[i]], value[i]);
    __syncthreads();
    for (int b = threadIdx.x; b < bins; b += blockDim.x)
        atomicAdd(&sum[b], part[b]);
#else
    for (int i = first; i < n; i += step)
        atomicAdd(&sum[key[i]], value[i]);
#endif
}
