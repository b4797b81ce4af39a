// The pass along columns of a separable convolution with 17 coefficients; edges repeat.
#define RADIUS 8
extern "C" __global__ void convolution_columns(const float *image, const float *coefficient,
                                               float *out, int width, int height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
#ifdef TILE_image
    __shared__ float tile[BLOCK_Y + 2 * RADIUS][BLOCK_X];
    if (x < width) {
        for (int t = threadIdx.y; t < BLOCK_Y + 2 * RADIUS; t += BLOCK_Y) {
            int from = (int)(blockIdx.y * BLOCK_Y) + t - RADIUS;
            from = min(max(from, 0), height - 1);
            tile[t][threadIdx.x] = image[from * width + x];
        }
    }
    __syncthreads();
#endif
    if (x < width && y < height) {
        float sum = 0.0f;
        for (int k = 0; k < 2 * RADIUS + 1; k++) {
#ifdef TILE_image
            sum += tile[threadIdx.y + k][threadIdx.x] * coefficient[k];
#else
            int from = min(max(y + k - RADIUS, 0), height - 1);
            sum += image[from * width + x] * coefficient[k];
#endif
        }
        out[y * width + x] = sum;
    }
}
