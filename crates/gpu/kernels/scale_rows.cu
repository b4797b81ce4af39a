// Rows of a matrix, each by a factor and an offset of its own.
extern "C" __global__ void scale_rows(const float *in, const float *factor, const float *offset,
                                      float *out, int width, int height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height)
        out[y * width + x] = in[y * width + x] * factor[y] + offset[y];
}
