/* Stand-ins for NVIDIA's libraries, for machines without a GPU: as libnvidia-ml.so.1 and libcuda.so.1 of three GPUs and a MIG slice.
   NVML knows the GPUs by the bus: 0 and 1 slow and idle, 2 fast and busy. CUDA shows what FAKE_CUDA lists, indices of NVML or m. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES 4
static const char *uuids[DEVICES] = {
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8932aaaa-d72c-4106-c12f-20bd9faed9f6",
    "GPU-1a2b3c4d-d72c-4106-c12f-20bd9faed9f6", "MIG-5e6f7a8b-d72c-4106-c12f-20bd9faed9f6"};
static const unsigned busy[DEVICES] = {4, 6, 96, 0};
static int calls = 0;
struct utilization { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
static int index_of(void *device) { return (int)(size_t)device - 1; }

int nvmlInitWithFlags(unsigned flags) { return getenv("FAKE_NVML_DOWN") ? 9 : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = DEVICES - 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    for (int i = 0; i < DEVICES; i++)
        if (!strcmp(uuid, uuids[i])) { *device = (void *)(size_t)(i + 1); return 0; }
    return 6;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) { snprintf(uuid, length, "%s", uuids[index_of(device)]); return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { snprintf(name, length, "GPU %d", index_of(device)); return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned length) { snprintf(version, length, "1"); return 0; }
int nvmlDeviceGetUtilizationRates(void *device, struct utilization *rates) {
    const char *lost = getenv("FAKE_NVML_LOST_AFTER");
    if (lost && ++calls > atoi(lost)) return 15;
    if (index_of(device) == 3) return 3;
    rates->gpu = busy[index_of(device)];
    rates->memory = 0;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *info) { info->used = 1000000ull * (index_of(device) + 1); return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 50000; return index_of(device) == 3 ? 3 : 0; }

static int shown(int ordinal) { char entry = getenv("FAKE_CUDA")[ordinal]; return entry == 'm' ? 3 : entry - '0'; }
int cuInit(unsigned flags) { return *getenv("FAKE_CUDA") ? 0 : 100; }
int cuDeviceGetCount(int *count) { *count = (int)strlen(getenv("FAKE_CUDA")); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    const char *digits = uuids[shown(device)] + 4;
    for (int i = 0; i < 16; i++) {
        if (*digits == '-') digits++;
        sscanf(digits, "%2hhx", &uuid[i]);
        digits += 2;
    }
    return 0;
}
