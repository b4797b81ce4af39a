// c = a b, square matrices, one element a thread.
extern "C" __global__ void mm(const float *a, const float *b, float *c, int n)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
#ifdef TILE_a
    __shared__ float a_tile[BLOCK_Y][BLOCK_X];
#endif
#ifdef TILE_b
    __shared__ float b_tile[BLOCK_X][BLOCK_X];
#endif
    float sum = 0.0f;
#if defined(TILE_a) || defined(TILE_b)
    for (int first = 0; first < n; first += BLOCK_X) {
#ifdef TILE_a
        int k = first + threadIdx.x;
        a_tile[threadIdx.y][threadIdx.x] = y < n && k < n ? a[y * n + k] : 0.0f;
#endif
#ifdef TILE_b
        for (int r = threadIdx.y; r < BLOCK_X; r += BLOCK_Y)
            b_tile[r][threadIdx.x] = x < n && first + r < n ? b[(first + r) * n + x] : 0.0f;
#endif
        __syncthreads();
        if (x < n && y < n) {
            int count = n - first < BLOCK_X ? n - first : BLOCK_X;
            for (int k = 0; k < count; k++) {
#ifdef TILE_a
                float left = a_tile[threadIdx.y][k];
#else
                float left = a[y * n + first + k];
#endif
#ifdef TILE_b
                float right = b_tile[k][threadIdx.x];
#else
                float right = b[(first + k) * n + x];
#endif
                sum += left * right;
            }
        }
        __syncthreads();
    }
#else
    if (x < n && y < n) {
        for (int k = 0; k < n; k++)
            sum += a[y * n + k] * b[k * n + x];
    }
#endif
    if (x < n && y < n)
        c[y * n + x] = sum;
}
