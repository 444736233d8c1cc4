/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * A daemon that behaves outwardly as DCGM's nv-hostengine: it holds the GPUs' device nodes open and listens on port 5555.
 * Whoever connects gets one line a value, FIELD GPU UUID DEVICE MODEL|VALUE, read through NVML at that moment. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef void *Handle;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;

static void *nvml;
static int held[65], holding;

/* A call of NVML; one that is missing in this release gives an error. */
static int call(const char *name, Handle device, void *out) {
    int (*function)(Handle, void *) = (int (*)(Handle, void *))dlsym(nvml, name);
    return function ? function(device, out) : 3;
}

static int simple(const char *name) {
    int (*function)(void) = (int (*)(void))dlsym(nvml, name);
    return function ? function() : 3;
}

/* As the real one, which opens the GPUs when a driver comes and keeps them. */
static void hold(void) {
    if (holding) return;
    for (int i = 0; i < 65; i++) {
        char path[32] = "/dev/nvidiactl";
        if (i < 64) snprintf(path, sizeof path, "/dev/nvidia%d", i);
        held[i] = open(path, O_RDWR);
        holding += held[i] >= 0;
    }
}

static void line(FILE *out, const char *field, unsigned gpu, const char *uuid, const char *model, double value) {
    fprintf(out, "%s %u %s nvidia%u %s|%.6f\n", field, gpu, uuid, gpu, model, value);
}

static void answer(FILE *out) {
    if (!nvml) nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!nvml || simple("nvmlInit_v2")) return;
    hold();
    unsigned count = 0;
    ((int (*)(unsigned *))dlsym(nvml, "nvmlDeviceGetCount_v2"))(&count);
    for (unsigned gpu = 0; gpu < count; gpu++) {
        Handle device;
        char uuid[96] = "", model[96] = "";
        if (((int (*)(unsigned, Handle *))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(gpu, &device)) continue;
        ((int (*)(Handle, char *, unsigned))dlsym(nvml, "nvmlDeviceGetUUID"))(device, uuid, sizeof uuid);
        ((int (*)(Handle, char *, unsigned))dlsym(nvml, "nvmlDeviceGetName"))(device, model, sizeof model);
        unsigned number;
        Memory memory;
        Rates rates;
        if (!((int (*)(Handle, unsigned, unsigned *))dlsym(nvml, "nvmlDeviceGetTemperature"))(device, 0, &number))
            line(out, "DCGM_FI_DEV_GPU_TEMP", gpu, uuid, model, number);
        if (!call("nvmlDeviceGetPowerUsage", device, &number))
            line(out, "DCGM_FI_DEV_POWER_USAGE", gpu, uuid, model, number / 1000.0);
        if (!call("nvmlDeviceGetUtilizationRates", device, &rates)) {
            line(out, "DCGM_FI_DEV_GPU_UTIL", gpu, uuid, model, rates.gpu);
            line(out, "DCGM_FI_DEV_MEM_COPY_UTIL", gpu, uuid, model, rates.memory);
        }
        if (!call("nvmlDeviceGetMemoryInfo", device, &memory)) {
            line(out, "DCGM_FI_DEV_FB_FREE", gpu, uuid, model, memory.free >> 20);
            line(out, "DCGM_FI_DEV_FB_USED", gpu, uuid, model, memory.used >> 20);
        }
    }
    simple("nvmlShutdown");
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        puts("Version : " VERSION);
        return 0;
    }
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(5555), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 8)) {
        perror("nv-hostengine: port 5555");
        return 1;
    }
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (nvml && !simple("nvmlInit_v2")) hold();
    for (;;) {
        int client = accept(listener, 0, 0);
        FILE *out = client < 0 ? 0 : fdopen(client, "w");
        if (!out) continue;
        answer(out);
        fclose(out);
    }
}
