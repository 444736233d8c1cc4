/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Start, stop, versions, handles; the checks that all calls share. */
#define _GNU_SOURCE
#include "lib.h"
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static State current;
static unsigned references;

void trace(const char *name) {
    const char *path = getenv("GPUSIM_TRACE");
    if (!path || !*path) return;
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return;
    char line[96];
    int n = snprintf(line, sizeof line, "%s\n", name);
    if (write(fd, line, (size_t)n) != n) abort();   /* a count that silently lacks calls would be worse */
    close(fd);
}

static int from_errno(int rc) { return rc == 0 ? OK : rc == EACCES || rc == EPERM || rc == EROFS ? NO_PERMISSION : OPERATING_SYSTEM; }

static void sleep_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

Call call_begin(const char *name) {
    Call call = {&current, OK};
    trace(name);
    pthread_mutex_lock(&mutex);
    if (!references) {
        call.rc = UNINITIALIZED;
        return call;
    }
    call.rc = from_errno(state_read(&current));
    if (call.rc) return call;
    const Fault *slow = fault_find(&current, "slow", ALL_GPUS);
    if (slow) sleep_ms(slow->value);
    return call;
}

void call_end(Call *call) {
    (void)call;
    pthread_mutex_unlock(&mutex);
}

int unsimulated(const char *name) {
    CALL(name);
    return NOT_SUPPORTED;
}

int change_state(int (*change)(State *, void *), void *argument) {
    int fd, rc = from_errno(state_edit(&current, &fd));
    if (rc) return rc;
    rc = change(&current, argument);
    if (rc) {
        state_abandon(fd);
        current.generation = 0;   /* `change` may have touched it: read again */
        return rc;
    }
    return from_errno(state_commit(&current, fd));
}

int check_privilege(const State *state, int gpu) {
    return fault_find(state, "no-permission", gpu) || access(state_path(), W_OK) ? NO_PERMISSION : OK;
}

/* The version in this library's real file name, such as 570.172.08 in libnvidia-ml.so.570.172.08. */
int library_version(char out[32]) {
    Dl_info info;
    char *path = dladdr((void *)(uintptr_t)&library_version, &info) ? realpath(info.dli_fname, NULL) : NULL;
    const char *suffix = path ? strstr(path, ".so.") : NULL;
    int found = suffix && isdigit((unsigned char)suffix[4]) && strchr(suffix + 4, '.');
    out[0] = 0;
    if (found) snprintf(out, 32, "%s", suffix + 4);
    free(path);
    return found;
}

/* The loaded kernel module's version, "" = none is loaded. With GPUSIM_STATE set there need be no host that looks like
 * a GPU host: the state's "driver" line stands for the module. Else /proc says, as for the vendor's library. */
void kernel_version(const State *state, char out[32]) {
    const char *explicit_state = getenv("GPUSIM_STATE");
    out[0] = 0;
    if (explicit_state && *explicit_state) {
        snprintf(out, 32, "%s", state->driver);
        return;
    }
    char line[256] = "";
    FILE *f = fopen("/proc/driver/nvidia/version", "re");
    if (!f) return;
    if (fgets(line, sizeof line, f)) {
        const char *p = strstr(line, "Kernel Module");
        for (p = p ? p + 13 : line; *p; p++) {
            if (isdigit((unsigned char)*p) && isspace((unsigned char)p[-1]) && strspn(p, "0123456789.") > 4) {
                snprintf(out, 32, "%.*s", (int)strspn(p, "0123456789."), p);
                break;
            }
        }
    }
    fclose(f);
}

static int init(const char *name) {
    char kernel[32], library[32];
    trace(name);
    State *fresh = calloc(1, sizeof *fresh);   /* its own copy: an init that fails must not disturb users of `current` */
    int rc = fresh ? from_errno(state_read(fresh)) : OPERATING_SYSTEM;
    if (rc == OPERATING_SYSTEM && fresh) rc = DRIVER_NOT_LOADED;   /* no machine is simulated here */
    if (!rc) {
        kernel_version(fresh, kernel);
        if (!*kernel || fault_find(fresh, "driver-not-loaded", ALL_GPUS))
            rc = DRIVER_NOT_LOADED;
        else if (fault_find(fresh, "lib-mismatch", ALL_GPUS) || (library_version(library) && strcmp(kernel, library)))
            rc = LIB_RM_VERSION_MISMATCH;
        else if (fault_find(fresh, "init-unknown", ALL_GPUS))
            rc = UNKNOWN;
    }
    free(fresh);
    if (rc) return rc;
    pthread_mutex_lock(&mutex);
    references++;
    pthread_mutex_unlock(&mutex);
    return OK;
}

API(nvmlInit)(void) { return init("nvmlInit"); }
API(nvmlInit_v2)(void) { return init("nvmlInit_v2"); }
API(nvmlInitWithFlags)(unsigned flags) {
    (void)flags;
    return init("nvmlInitWithFlags");
}

API(nvmlShutdown)(void) {
    trace("nvmlShutdown");
    pthread_mutex_lock(&mutex);
    int rc = references ? OK : UNINITIALIZED;
    references -= references > 0;
    pthread_mutex_unlock(&mutex);
    return rc;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized", "Not Found",
        "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "The operating system has blocked the request.", "RM has detected an NVML/RM version mismatch.", "In use by another client",
        "Insufficient Memory", "No data", "The requested vgpu operation is not available on target device, because ECC is enabled",
        "Insufficient Resources", "Frequency Not Supported", "Argument Version Mismatch", "Deprecated", "System Not Ready", "GPU Not Found",
        "Invalid State", "Reset Type Not Supported"};
    trace("nvmlErrorString");
    return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "Unknown Error";
}

/* Handles are numbers in a pointer's clothes: kind, GPU slot, GPU instance, compute instance. */
static Handle make_handle(char kind, unsigned gpu, unsigned gi, unsigned ci) {
    return (Handle)(uintptr_t)((uintptr_t)(unsigned char)kind << 32 | (uintptr_t)gpu << 16 | gi << 8 | ci);
}
Handle gpu_handle(unsigned gpu) { return make_handle('D', gpu, 0, 0); }
Handle mig_handle(unsigned gpu, unsigned gi, unsigned ci) { return make_handle('M', gpu, gi, ci); }
Handle gi_handle(unsigned gpu, unsigned gi) { return make_handle('G', gpu, gi, 0); }
Handle ci_handle(unsigned gpu, unsigned gi, unsigned ci) { return make_handle('C', gpu, gi, ci); }

static int drop_reading(State *state, void *gpu) {
    const Fault *fault = fault_find(state, "lost-reading", *(int *)gpu);
    if (fault) fault_remove(state, fault);
    return OK;
}

static int device_fault(State *state, int gpu) {
    if (fault_find(state, "gpu-lost", gpu)) return GPU_IS_LOST;
    if (fault_find(state, "timeout", gpu)) return TIMEOUT;
    if (fault_find(state, "reset-required", gpu)) return RESET_REQUIRED;
    if (fault_find(state, "corrupted-inforom", gpu)) return CORRUPTED_INFOROM;
    if (fault_find(state, "lost-reading", gpu)) {
        int rc = change_state(drop_reading, &gpu);
        return rc ? rc : UNKNOWN;
    }
    return OK;
}

bool gpu_present(const State *state, unsigned gpu) { return gpu < state->gpu_count && !fault_find(state, "off-bus", (int)gpu); }

int gpu_at(const State *state, unsigned index) {
    for (unsigned i = 0; i < state->gpu_count; i++)
        if (gpu_present(state, i) && index-- == 0) return (int)i;
    return -1;
}

static int resolve(State *state, Handle handle, const char *kinds, Device *out) {
    uintptr_t h = (uintptr_t)handle;
    unsigned gpu = h >> 16 & 0xffff, gi = h >> 8 & 0xff, ci = h & 0xff;
    char kind = (char)(h >> 32);
    *out = (Device){.gpu = (int)gpu};
    if (!handle || h >> 40 || !kind || !strchr(kinds, kind) || gpu >= state->gpu_count) return INVALID_ARGUMENT;
    if (!gpu_present(state, gpu)) return GPU_IS_LOST;
    int rc = device_fault(state, (int)gpu);
    if (rc) return rc;
    out->g = &state->gpus[gpu];
    if (kind == 'D') return OK;
    out->gi = gi_find(out->g, gi);
    if (out->gi && kind != 'G') out->ci = ci_find(out->gi, ci);
    return out->gi && (out->ci || kind == 'G') ? OK : NOT_FOUND;
}

int device_find(State *state, Handle handle, Device *out) { return resolve(state, handle, "DM", out); }
int instance_find(State *state, Handle handle, Device *out) { return resolve(state, handle, "GC", out); }

int copy_text(const char *text, char *buffer, unsigned length) {
    if (!buffer) return INVALID_ARGUMENT;
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return OK;
}

API(nvmlSystemGetDriverVersion)(char *version, unsigned length) {
    CALL("nvmlSystemGetDriverVersion");
    char kernel[32];
    kernel_version(call.state, kernel);
    return copy_text(kernel, version, length);
}

/* CUDA version of a driver branch: NVIDIA CUDA Toolkit release notes, as nvidia-smi shows it. */
static int cuda_version(const State *state, int *version) {
    static const struct { int branch, cuda; } table[] = {{470, 11040}, {525, 12000}, {535, 12020}, {550, 12040}, {560, 12060}, {565, 12070},
                                                         {570, 12080}, {575, 12090}, {580, 13000}, {590, 13010}, {595, 13020}, {610, 13030}};
    char kernel[32];
    kernel_version(state, kernel);
    if (!version) return INVALID_ARGUMENT;
    *version = table[0].cuda;
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++)
        if (atoi(kernel) >= table[i].branch) *version = table[i].cuda;
    return OK;
}

API(nvmlSystemGetCudaDriverVersion)(int *version) {
    CALL("nvmlSystemGetCudaDriverVersion");
    return cuda_version(call.state, version);
}

API(nvmlSystemGetCudaDriverVersion_v2)(int *version) {
    CALL("nvmlSystemGetCudaDriverVersion_v2");
    return cuda_version(call.state, version);
}

API(nvmlSystemGetNVMLVersion)(char *version, unsigned length) {
    CALL("nvmlSystemGetNVMLVersion");
    char kernel[32], text[48];
    int cuda = 0;
    kernel_version(call.state, kernel);
    cuda_version(call.state, &cuda);
    snprintf(text, sizeof text, "%d.%s", cuda / 1000, kernel);
    return copy_text(text, version, length);
}

API(nvmlSystemGetProcessName)(unsigned pid, char *name, unsigned length) {
    CALL("nvmlSystemGetProcessName");
    for (unsigned i = 0; i < call.state->client_count; i++)
        if (call.state->clients[i].pid == pid && client_alive(&call.state->clients[i])) return copy_text(call.state->clients[i].name, name, length);
    return NOT_FOUND;
}

API(nvmlUnitGetCount)(unsigned *count) {
    CALL("nvmlUnitGetCount");
    if (!count) return INVALID_ARGUMENT;
    *count = 0;   /* S-class units are long gone */
    return OK;
}

int creation_fault(State *state, int gpu) {
    if (fault_find(state, "insufficient-resources", gpu)) return INSUFFICIENT_RESOURCES;
    Fault *fault = (Fault *)fault_find(state, "create-fails-at", gpu);
    if (!fault || --fault->value > 0) return OK;
    int code = fault->code ? (int)fault->code : INSUFFICIENT_RESOURCES;
    fault_remove(state, fault);
    return code;
}
