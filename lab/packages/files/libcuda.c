/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * A libcuda.so.1 that can be found and asked for its version (CUDA Driver API: cuInit, cuDriverGetVersion). */
#define API __attribute__((visibility("default")))
enum { SUCCESS = 0, INVALID_VALUE = 1, NO_DEVICE = 100 };

API int cuInit(unsigned flags) {
    return flags ? INVALID_VALUE : NO_DEVICE;
}

API int cuDriverGetVersion(int *version) {
    if (!version) return INVALID_VALUE;
    *version = CUDA;
    return SUCCESS;
}
