// Fluxes of the Euler equations over an unstructured mesh, one element a thread.
extern "C" __global__ void cfd(const int *neighbor, const float *normal, const float *variable,
                               const float *far_field, float *flux, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float density = variable[i];
        float mx = variable[i + n];
        float my = variable[i + 2 * n];
        float mz = variable[i + 3 * n];
        float energy = variable[i + 4 * n];
        float f0 = 0.0f;
        float f1 = 0.0f;
        float f2 = 0.0f;
        float f3 = 0.0f;
        float f4 = 0.0f;
        for (int j = 0; j < 4; j++) {
            int other = neighbor[i + j * n];
            float nx = normal[i + (j + 0 * 4) * n];
            float ny = normal[i + (j + 1 * 4) * n];
            float nz = normal[i + (j + 2 * 4) * n];
            float d = far_field[0];
            float x = far_field[1];
            float y = far_field[2];
            float z = far_field[3];
            float e = far_field[4];
            if (other >= 0) {
                d = variable[other];
                x = variable[other + n];
                y = variable[other + 2 * n];
                z = variable[other + 3 * n];
                e = variable[other + 4 * n];
            }
            float pressure = 0.4f * (e - 0.5f * (x * x + y * y + z * z) / d);
            float speed = sqrtf(1.4f * fabsf(pressure) / d);
            float factor = 0.5f * (nx + ny + nz) + 0.1f * speed;
            f0 += factor * (density - d);
            f1 += factor * (mx - x) + nx * pressure;
            f2 += factor * (my - y) + ny * pressure;
            f3 += factor * (mz - z) + nz * pressure;
            f4 += factor * (energy - e);
        }
        flux[i] = f0;
        flux[i + n] = f1;
        flux[i + 2 * n] = f2;
        flux[i + 3 * n] = f3;
        flux[i + 4 * n] = f4;
    }
}
