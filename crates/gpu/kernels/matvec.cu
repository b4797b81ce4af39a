// y = A x, A dense and by rows, one row a thread.
#define CHUNK 32
extern "C" __global__ void matvec(const float *matrix, const float *x, float *y, int n, int m)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
#ifdef TILE_matrix
    __shared__ float tile[BLOCK_X][CHUNK + 1];
    for (int first = 0; first < m; first += CHUNK) {
        for (int t = threadIdx.x; t < BLOCK_X * CHUNK; t += BLOCK_X) {
            int r = blockIdx.x * BLOCK_X + t / CHUNK;
            int c = first + t % CHUNK;
            tile[t / CHUNK][t % CHUNK] = r < n && c < m ? matrix[r * m + c] : 0.0f;
        }
        __syncthreads();
        int count = m - first < CHUNK ? m - first : CHUNK;
        for (int k = 0; k < count; k++)
            sum += tile[threadIdx.x][k] * x[first + k];
        __syncthreads();
    }
    if (row < n)
        y[row] = sum;
#else
    if (row < n) {
        for (int k = 0; k < m; k++)
            sum += matrix[row * m + k] * x[k];
        y[row] = sum;
    }
#endif
}
