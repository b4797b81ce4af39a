// out = in transposed, square.
extern "C" __global__ void transpose(const float *in, float *out, int n)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
#ifdef TILE_in
    __shared__ float tile[BLOCK_Y][BLOCK_X + 1];
    if (x < n && y < n)
        tile[threadIdx.y][threadIdx.x] = in[y * n + x];
    __syncthreads();
    int flat = threadIdx.y * BLOCK_X + threadIdx.x;
    int ty = flat % BLOCK_Y;
    int tx = flat / BLOCK_Y;
    int to_x = blockIdx.y * BLOCK_Y + ty;
    int to_y = blockIdx.x * BLOCK_X + tx;
    if (to_x < n && to_y < n)
        out[to_y * n + to_x] = tile[ty][tx];
#else
    if (x < n && y < n)
        out[x * n + y] = in[y * n + x];
#endif
}
