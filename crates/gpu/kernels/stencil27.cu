// A stencil of 27 points on a cube; the surface stays.
extern "C" __global__ void stencil27(const float *in, const float *weight, float *out, int n)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z;
#ifdef TILE_in
    __shared__ float tile[3][BLOCK_Y + 2][BLOCK_X + 2];
    for (int c = 0; c < 3; c++) {
        for (int b = threadIdx.y; b < BLOCK_Y + 2; b += BLOCK_Y) {
            for (int a = threadIdx.x; a < BLOCK_X + 2; a += BLOCK_X) {
                int fx = min(max((int)(blockIdx.x * BLOCK_X) + a - 1, 0), n - 1);
                int fy = min(max((int)(blockIdx.y * BLOCK_Y) + b - 1, 0), n - 1);
                int fz = min(max(z + c - 1, 0), n - 1);
                tile[c][b][a] = in[(fz * n + fy) * n + fx];
            }
        }
    }
    __syncthreads();
#endif
    if (x > 0 && y > 0 && z > 0 && x < n - 1 && y < n - 1 && z < n - 1) {
        float sum = 0.0f;
        for (int c = 0; c < 3; c++) {
            for (int b = 0; b < 3; b++) {
                for (int a = 0; a < 3; a++) {
#ifdef TILE_in
                    float value = tile[c][threadIdx.y + b][threadIdx.x + a];
#else
                    float value = in[((z + c - 1) * n + y + b - 1) * n + x + a - 1];
#endif
                    sum += weight[(c * 3 + b) * 3 + a] * value;
                }
            }
        }
        out[(z * n + y) * n + x] = sum;
    }
}
