// One step of Jacobi's method on a square; the border stays.
extern "C" __global__ void jacobi(const float *in, float *out, int n)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
#ifdef TILE_in
    __shared__ float tile[BLOCK_Y + 2][BLOCK_X + 2];
    for (int b = threadIdx.y; b < BLOCK_Y + 2; b += BLOCK_Y) {
        for (int a = threadIdx.x; a < BLOCK_X + 2; a += BLOCK_X) {
            int fx = min(max((int)(blockIdx.x * BLOCK_X) + a - 1, 0), n - 1);
            int fy = min(max((int)(blockIdx.y * BLOCK_Y) + b - 1, 0), n - 1);
            tile[b][a] = in[fy * n + fx];
        }
    }
    __syncthreads();
    if (x > 0 && y > 0 && x < n - 1 && y < n - 1)
        out[y * n + x] = 0.25f * (tile[threadIdx.y][threadIdx.x + 1]
                                  + tile[threadIdx.y + 2][threadIdx.x + 1]
                                  + tile[threadIdx.y + 1][threadIdx.x]
                                  + tile[threadIdx.y + 1][threadIdx.x + 2]);
#else
    if (x > 0 && y > 0 && x < n - 1 && y < n - 1)
        out[y * n + x] = 0.25f * (in[(y - 1) * n + x] + in[(y + 1) * n + x] + in[y * n + x - 1]
                                  + in[y * n + x + 1]);
#endif
}
