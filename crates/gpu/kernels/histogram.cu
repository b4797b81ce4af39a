// Counts of values below `bins`, over a grid of fixed size.
extern "C" __global__ void histogram(const int *data, int *count, int n, int bins)
{
    int first = blockIdx.x * blockDim.x + threadIdx.x;
    int step = blockDim.x * gridDim.x;
#ifdef TILE_count
    __shared__ int part[BINS];
    for (int b = threadIdx.x; b < bins; b += blockDim.x)
        part[b] = 0;
    __syncthreads();
    for (int i = first; i < n; i += step)
        atomicAdd(&part[data[i]], 1);
    __syncthreads();
    for (int b = threadIdx.x; b < bins; b += blockDim.x)
        atomicAdd(&count[b], part[b]);
#else
    for (int i = first; i < n; i += step)
        atomicAdd(&count[data[i]], 1);
#endif
}
