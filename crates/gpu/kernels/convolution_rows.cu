// The pass along rows of a separable convolution with 17 coefficients; edges repeat.
#define RADIUS 8
extern "C" __global__ void convolution_rows(const float *image, const float *coefficient,
                                            float *out, int width, int height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
#ifdef TILE_image
    __shared__ float tile[BLOCK_Y][BLOCK_X + 2 * RADIUS];
    if (y < height) {
        for (int t = threadIdx.x; t < BLOCK_X + 2 * RADIUS; t += BLOCK_X) {
            int from = (int)(blockIdx.x * BLOCK_X) + t - RADIUS;
            from = min(max(from, 0), width - 1);
            tile[threadIdx.y][t] = image[y * width + from];
        }
    }
    __syncthreads();
#endif
    if (x < width && y < height) {
        float sum = 0.0f;
        for (int k = 0; k < 2 * RADIUS + 1; k++) {
#ifdef TILE_image
            sum += tile[threadIdx.y][threadIdx.x + k] * coefficient[k];
#else
            int from = min(max(x + k - RADIUS, 0), width - 1);
            sum += image[y * width + from] * coefficient[k];
#endif
        }
        out[y * width + x] = sum;
    }
}
