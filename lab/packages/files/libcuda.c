/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * A libcuda.so.1 with as much of the CUDA Driver API as a program takes that adds two vectors: devices as NVML and
 * CUDA_VISIBLE_DEVICES have them, memory and kernels in the memory and on the processor of this machine. A module is text
 * in PTX; the kernel that is launched adds float vectors, (a, b, c, n). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default"))) int
enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, INVALID_PTX = 218, NOT_FOUND = 500, DRIVER_MISMATCH = 803, UNKNOWN = 999
};

static void *devices[64];   /* NVML's handles */
static int count, ready, contexts;
static char kernel[128];

static void *nvml(const char *name) {
    static void *library;
    if (!library) library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

/* The devices of CUDA_VISIBLE_DEVICES, which names UUIDs of GPUs or MIG devices; all GPUs where it is not set. */
static void find_devices(void) {
    int (*by_uuid)(const char *, void **) = (int (*)(const char *, void **))nvml("nvmlDeviceGetHandleByUUID");
    int (*by_index)(unsigned, void **) = (int (*)(unsigned, void **))nvml("nvmlDeviceGetHandleByIndex_v2");
    int (*name)(void *, char *, unsigned) = (int (*)(void *, char *, unsigned))nvml("nvmlDeviceGetName");
    char *visible = getenv("CUDA_VISIBLE_DEVICES"), list[4096], text[96];
    count = 0;
    if (!visible) {
        unsigned found = 0;
        ((int (*)(unsigned *))nvml("nvmlDeviceGetCount_v2"))(&found);
        for (unsigned i = 0; i < found && i < 64; i++) count += !by_index(i, &devices[count]);
        return;
    }
    snprintf(list, sizeof list, "%s", visible);
    /* The first that is none ends the list; a GPU that is lost is none. */
    for (char *one = strtok(list, ","); one && count < 64; one = strtok(NULL, ","), count++)
        if (by_uuid(one, &devices[count]) || name(devices[count], text, sizeof text)) return;
}

API cuInit(unsigned flags) {
    int (*init)(void) = (int (*)(void))nvml("nvmlInit_v2");
    if (flags) return INVALID_VALUE;
    if (!init) return NO_DEVICE;
    int rc = init();
    if (rc) return rc == 18 ? DRIVER_MISMATCH : NO_DEVICE;
    if (access("/dev/nvidia-uvm", R_OK | W_OK)) return UNKNOWN;
    find_devices();
    ready = count > 0;
    return ready ? SUCCESS : NO_DEVICE;
}

API cuDriverGetVersion(int *version) {
    if (!version) return INVALID_VALUE;
    *version = CUDA;
    return SUCCESS;
}

API cuDeviceGetCount(int *found) {
    if (!ready) return NOT_INITIALIZED;
    *found = count;
    return SUCCESS;
}

API cuDeviceGet(int *device, int ordinal) {
    if (!ready) return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= count) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

API cuCtxCreate_v2(void **context, unsigned flags, int device) {
    if (!ready) return NOT_INITIALIZED;
    if (flags || device < 0 || device >= count) return INVALID_VALUE;
    contexts++;
    *context = &devices[device];
    return SUCCESS;
}

API cuCtxDestroy_v2(void *context) {
    if (!context || !contexts) return INVALID_CONTEXT;
    contexts--;
    return SUCCESS;
}

API cuModuleLoadData(void **module, const void *image) {
    const char *text = image, *entry = strstr(text, ".visible .entry ");
    if (!contexts) return INVALID_CONTEXT;
    if (strncmp(text, ".version ", 9) || !strstr(text, ".target sm_") || !strstr(text, "add.f32") || !entry ||
        sscanf(entry, ".visible .entry %127[A-Za-z0-9_]", kernel) != 1) return INVALID_PTX;
    *module = kernel;
    return SUCCESS;
}

API cuModuleGetFunction(void **function, void *module, const char *name) {
    if (module != kernel || strcmp(name, kernel)) return NOT_FOUND;
    *function = kernel;
    return SUCCESS;
}

API cuMemAlloc_v2(unsigned long long *where, size_t size) {
    if (!contexts) return INVALID_CONTEXT;
    *where = (unsigned long long)calloc(1, size);
    return *where ? SUCCESS : OUT_OF_MEMORY;
}

API cuMemFree_v2(unsigned long long where) {
    free((void *)where);
    return SUCCESS;
}

API cuMemcpyHtoD_v2(unsigned long long target, const void *source, size_t size) {
    memcpy((void *)target, source, size);
    return SUCCESS;
}

API cuMemcpyDtoH_v2(void *target, unsigned long long source, size_t size) {
    memcpy(target, (void *)source, size);
    return SUCCESS;
}

API cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **words, void **extra) {
    if (function != kernel || gy * gz * by * bz != 1 || shared || stream || extra || !words) return INVALID_VALUE;
    const float *a = *(float **)words[0], *b = *(float **)words[1];
    float *c = *(float **)words[2];
    for (unsigned i = 0; i < gx * bx && i < *(unsigned *)words[3]; i++) c[i] = a[i] + b[i];
    return SUCCESS;
}

API cuCtxSynchronize(void) {
    return contexts ? SUCCESS : INVALID_CONTEXT;
}
