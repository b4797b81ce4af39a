// The nearest of the centres for each point.
#define DIMENSION 8
extern "C" __global__ void kmeans(const float *point, const float *center, int *nearest, int n,
                                  int centers)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float best = 1e30f;
        int found = 0;
        for (int c = 0; c < centers; c++) {
            float sum = 0.0f;
            for (int d = 0; d < DIMENSION; d++) {
                float difference = point[d * n + i] - center[c * DIMENSION + d];
                sum += difference * difference;
            }
            if (sum < best) {
                best = sum;
                found = c;
            }
        }
        nearest[i] = found;
    }
}
