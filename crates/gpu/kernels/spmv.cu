// y = A x, A in compressed sparse rows, one row a thread.
extern "C" __global__ void spmv(const int *rows, const int *columns, const float *values,
                                const float *x, float *y, int n)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef TILE_rows
    __shared__ int tile[BLOCK_X + 1];
    if (row <= n)
        tile[threadIdx.x] = rows[row];
    if (threadIdx.x == 0) {
        int last = blockIdx.x * blockDim.x + blockDim.x;
        tile[BLOCK_X] = rows[last < n ? last : n];
    }
    __syncthreads();
#endif
    if (row < n) {
#ifdef TILE_rows
        int begin = tile[threadIdx.x];
        int end = tile[threadIdx.x + 1];
#else
        int begin = rows[row];
        int end = rows[row + 1];
#endif
        float sum = 0.0f;
        for (int k = begin; k < end; k++)
            sum += values[k] * x[columns[k]];
        y[row] = sum;
    }
}
