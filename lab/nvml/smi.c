/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
#include "smi.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

Nvml nv;
Selected gpus[MAX_SELECTED];
unsigned gpu_count;

int exit_code(int rc) { return rc > 255 ? 255 : rc; }

static int load(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver is properly "
             "installed and present in your system.\nPlease also try adding directory that contains libnvidia-ml.so to your system PATH.");
        return 12;
    }
#define LOAD(name, symbol, parameters) \
    if (!(*(void **)&nv.name = dlsym(library, symbol))) return printf("Failed to find %s in libnvidia-ml.so\n", symbol), 13;
    NVML_CALLS(LOAD)
    *(void **)&nv.error = dlsym(library, "nvmlErrorString");
    return 0;
}

static int start(void) {
    int rc = load();
    if (rc) return rc;
    rc = nv.init();
    if (rc == DRIVER_NOT_LOADED)
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is "
             "installed and running.\n");
    else if (rc == LIB_RM_VERSION_MISMATCH)
        puts("Failed to initialize NVML: Driver/library version mismatch");
    else if (rc)
        printf("Failed to initialize NVML: %s\n", nv.error(rc));
    return exit_code(rc);
}

static bool same_pci(const char *text, const PciInfo *pci) {
    unsigned a[3] = {0};
    if (sscanf(text, "%x:%x:%x", &a[0], &a[1], &a[2]) != 3) {
        a[0] = 0;
        if (sscanf(text, "%x:%x", &a[1], &a[2]) != 2) return false;
    }
    return a[0] == pci->domain && a[1] == pci->bus && a[2] == pci->device;
}

static bool named(const Selected *g, const char *list) {
    char copy[1024], index[12];
    snprintf(copy, sizeof copy, "%s", list);
    snprintf(index, sizeof index, "%u", g->index);
    for (char *save = NULL, *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save))
        if (!strcmp(word, index) || !strcasecmp(word, g->uuid) || same_pci(word, &g->pci)) return true;
    return false;
}

int select_gpus(const char *list) {
    unsigned count = 0;
    int rc = nv.count(&count);
    gpu_count = 0;
    for (unsigned i = 0; !rc && i < count && gpu_count < MAX_SELECTED; i++) {
        Selected *g = &gpus[gpu_count];
        g->index = i;
        int failed = nv.by_index(i, &g->handle);
        if (!failed) failed = nv.pci(g->handle, &g->pci);
        if (!failed) failed = nv.uuid(g->handle, g->uuid, sizeof g->uuid);
        if (!failed) failed = nv.name(g->handle, g->name, sizeof g->name);
        if (failed) {
            printf("Unable to determine the device handle for GPU%u: %s\n", i, failed == GPU_IS_LOST ?
                   "GPU is lost.  Reboot the system to recover this GPU" : nv.error(failed));
            return exit_code(failed);
        }
        gpu_count += !list || named(g, list);
    }
    if (rc) {
        printf("Failed to count GPUs: %s\n", nv.error(rc));
    } else if (!gpu_count) {
        puts("No devices were found");
        rc = NOT_FOUND;
    }
    return exit_code(rc);
}

static void list_devices(void) {
    for (unsigned i = 0; i < gpu_count; i++) {
        unsigned max = 0;
        printf("GPU %u: %s (UUID: %s)\n", gpus[i].index, gpus[i].name, gpus[i].uuid);
        if (nv.mig_max(gpus[i].handle, &max)) continue;
        for (unsigned k = 0; k < max; k++) {
            Handle device;
            char name[192], uuid[96];
            if (nv.mig_by_index(gpus[i].handle, k, &device) || nv.name(device, name, sizeof name) || nv.uuid(device, uuid, sizeof uuid)) continue;
            printf("  %-16sDevice %2u: (UUID: %s)\n", name + strlen(gpus[i].name) + 1, k, uuid);
        }
    }
}

static int set_persistence(unsigned mode) {
    for (unsigned i = 0; i < gpu_count; i++) {
        unsigned before = 0;
        nv.persistence(gpus[i].handle, &before);
        int rc = nv.set_persistence(gpus[i].handle, mode);
        if (rc == NO_PERMISSION) {
            printf("Unable to set persistence mode for GPU %s: Insufficient Permissions\nTerminating early due to previous errors.\n", gpus[i].pci.busId);
            return rc;
        }
        if (rc) return printf("Unable to set persistence mode for GPU %s: %s\n", gpus[i].pci.busId, nv.error(rc)), exit_code(rc);
        if (before == mode)
            printf("Persistence mode is already %s for GPU %s.\n", mode ? "Enabled" : "Disabled", gpus[i].pci.busId);
        else
            printf("%s persistence mode for GPU %s.\n", mode ? "Enabled" : "Disabled", gpus[i].pci.busId);
    }
    puts("All done.");
    return 0;
}

/* Texts and the exit status 0 on a pending mode: NVIDIA MIG User Guide, "Enable MIG mode". */
static int set_mig(unsigned mode) {
    const char *word = mode ? "enable" : "disable";
    bool any = false;
    for (unsigned i = 0; i < gpu_count; i++) {
        unsigned activation = 0;
        const char *bus = gpus[i].pci.busId;
        int rc = nv.set_mig_mode(gpus[i].handle, mode, &activation);
        if (rc == NOT_SUPPORTED) {
            printf("Unable to %s MIG Mode for GPU %s: Not Supported\nTreating as warning and moving on.\n", word, bus);
            continue;
        }
        any = true;
        if (rc) {
            printf("Unable to %s MIG Mode for GPU %s: %s\nTerminating early due to previous errors.\n", word, bus, nv.error(rc));
            return exit_code(rc);
        }
        if (activation == OK) {
            printf("%sd MIG Mode for GPU %s\n", mode ? "Enable" : "Disable", bus);
            continue;
        }
        printf("Warning: MIG mode is in pending %s state for GPU %s:%s\n", word, bus, nv.error((int)activation));
        if (activation == IN_USE)
            printf("%s is currently being used by one or more other processes (e.g. CUDA application or a monitoring application such as another "
                   "instance of nvidia-smi). Please first kill all processes using the device and retry the command or reboot the system to make "
                   "MIG mode effective.\n", bus);
        else
            puts("Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on this device.");
    }
    puts("All done.");
    return any ? 0 : NOT_SUPPORTED;
}

static int reset_gpus(const char *list) {
    unsigned count = 0, chosen = 0;
    /* By the place in NVML's list: a GPU that needs a reset answers nothing else. */
    if (nv.count(&count)) return 255;
    for (unsigned i = 0; i < count; i++) {
        Selected g = {.index = i};
        if (nv.pci_at(i, &g.pci)) continue;
        if (!nv.by_index(i, &g.handle)) nv.uuid(g.handle, g.uuid, sizeof g.uuid);
        if (list && !named(&g, list)) continue;
        chosen++;
        int rc = nv.reset(i);
        if (rc == IN_USE)
            printf("The following GPUs could not be reset:\n  GPU %s: In use by another client\n\n1 device is currently being used by one or more other "
                   "processes (e.g., Fabric Manager, CUDA application, graphics application such as an X server, or a monitoring application such as "
                   "another instance of nvidia-smi). Please first kill all processes using this device and all compute applications running in the "
                   "system.\n", g.pci.busId);
        else if (rc)
            printf("GPU Reset couldn't run because of: %s\n", nv.error(rc));
        if (rc) return exit_code(rc);
        printf("GPU %s was successfully reset.\n", g.pci.busId);
    }
    if (!chosen) return puts("No devices were found"), NOT_FOUND;
    puts("All done.");
    return 0;
}

static void print_version(void) {
    char driver[80] = "", nvml[80] = "";
    int cuda = 0;
    nv.driver_version(driver, sizeof driver);
    nv.nvml_version(nvml, sizeof nvml);
    nv.cuda_version(&cuda);
    printf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %d.%d\n", driver,
           strchr(nvml, '.') ? strchr(nvml, '.') + 1 : nvml, driver, cuda / 1000, cuda % 1000 / 10);
}

static const char *value_of(const char *argument, const char *option) {
    size_t n = strlen(option);
    return !strncmp(argument, option, n) && argument[n] == '=' ? argument + n + 1 : NULL;
}

int main(int argc, char **argv) {
    const char *ids = NULL, *query = NULL, *apps = NULL, *format = NULL, *value;
    int persistence = -1, mig = -1, rc = 0;
    bool list = false, version = false, reset = false;
    if (argc > 1 && !strcmp(argv[1], "mig")) {
        rc = start();
        return rc ? rc : mig_command(argc - 2, argv + 2);
    }
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        if ((!strcmp(a, "-i") || !strcmp(a, "--id")) && next)
            ids = argv[++i];
        else if ((value = value_of(a, "--id")) || (value = value_of(a, "-i")))
            ids = value;
        else if ((value = value_of(a, "--query-gpu")))
            query = value;
        else if ((value = value_of(a, "--query-compute-apps")))
            apps = value;
        else if ((value = value_of(a, "--format")))
            format = value;
        else if ((!strcmp(a, "-pm") || !strcmp(a, "--persistence-mode")) && next)
            persistence = strchr("1E", *argv[++i]) ? 1 : 0;
        else if ((value = value_of(a, "--persistence-mode")))
            persistence = strchr("1E", *value) ? 1 : 0;
        else if ((!strcmp(a, "-mig") || !strcmp(a, "--multi-instance-gpu")) && next)
            mig = strchr("1E", *argv[++i]) ? 1 : 0;
        else if ((value = value_of(a, "--multi-instance-gpu")))
            mig = strchr("1E", *value) ? 1 : 0;
        else if (!strcmp(a, "-L") || !strcmp(a, "--list-gpus"))
            list = true;
        else if (!strcmp(a, "-r") || !strcmp(a, "--gpu-reset"))
            reset = true;
        else if (!strcmp(a, "--version"))
            version = true;
        else
            return printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\nUnknown option: %s\n", a), 2;
    }
    rc = start();
    if (rc) return rc;
    if (version) return print_version(), 0;
    if (reset) return reset_gpus(ids);
    rc = select_gpus(ids);
    if (rc) return rc;
    if (persistence >= 0) return set_persistence((unsigned)persistence);
    if (mig >= 0) return set_mig((unsigned)mig);
    if (list) return list_devices(), 0;
    if (query) return query_gpu(query, format);
    if (apps) return query_apps(apps, format);
    return print_table();
}
