/* libnvidia-ml.so.1 over the GPUs of node.h, written from NVML's public API. */
#include <errno.h>

#include "node.h"

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, NOT_LOADED = 9 };

typedef struct {
    unsigned field, scope;
    long long at_us, took_us;
    unsigned type;
    int result;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; } value;
} field_t;

static int users;

static gpu_t *gpu_of(void *handle) {
    intptr_t i = (intptr_t)handle - 0x1000;
    return N && users && i >= 0 && i < (intptr_t)N->gpus ? &N->gpu[i] : 0;
}

/* Begin a read: the GPU is at this instant, and the node is locked. */
static int begin(void *handle, gpu_t **g) {
    if (!users) return UNINITIALIZED;
    if (!(*g = gpu_of(handle))) return INVALID;
    wait_for((*g)->read_delay_s);
    if ((*g)->read_fault) return (int)(*g)->read_fault;
    take();
    follow(*g);
    return OK;
}

#define READ(name, type, what)                          \
    int name(void *handle, type *out) {                 \
        gpu_t *g;                                       \
        int r = begin(handle, &g);                      \
        if (r) return r;                                \
        *out = (type)(what);                            \
        leave();                                        \
        return OK;                                      \
    }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!users && attach("STANDIN_NODE")) return NOT_LOADED;
    if (N->init_fault) return (int)N->init_fault;
    users++;
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    if (!users) return UNINITIALIZED;
    users--;
    return OK;
}
const char *nvmlErrorString(int r) {
    static __thread char text[32];
    snprintf(text, sizeof text, "stand-in error %d", r);
    return text;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!users) return UNINITIALIZED;
    wait_for(N->list_delay_s);
    *count = N->gpus;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle) {
    if (!users) return UNINITIALIZED;
    if (i >= N->gpus) return INVALID;
    *handle = (void *)(intptr_t)(0x1000 + i);
    return OK;
}
int nvmlDeviceGetUUID(void *handle, char *out, unsigned size) {
    if (!gpu_of(handle)) return INVALID;
    snprintf(out, size, "GPU-57a4d1f0-%04x-0000-0000-%012d", N->base, (int)((intptr_t)handle - 0x1000));
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    char other[96];
    for (unsigned i = 0; users && i < N->gpus; i++) {
        nvmlDeviceGetHandleByIndex_v2(i, handle);
        nvmlDeviceGetUUID(*handle, other, sizeof other);
        if (!strcmp(other, uuid)) return OK;
    }
    return users ? NOT_FOUND : UNINITIALIZED;
}
int nvmlDeviceGetName(void *handle, char *out, unsigned size) {
    if (!gpu_of(handle)) return INVALID;
    snprintf(out, size, "Stand-in H100");
    return OK;
}
READ(nvmlDeviceGetPersistenceMode, unsigned, g->persistent)
READ(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, g->default_mw)
READ(nvmlDeviceGetPowerManagementLimit, unsigned, g->limit_mw)
READ(nvmlDeviceGetPowerUsage, unsigned, draw_w(g) * 1e3 + .5)
READ(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, g->energy_j * 1e3)
int nvmlDeviceGetPowerManagementLimitConstraints(void *handle, unsigned *low, unsigned *high) {
    gpu_t *g;
    int r = begin(handle, &g);
    if (r) return r;
    *low = g->min_mw;
    *high = g->max_mw;
    leave();
    return OK;
}
int nvmlDeviceGetFieldValues(void *handle, int count, field_t *fields) {
    gpu_t *g;
    int r = begin(handle, &g);
    if (r) return r;
    for (int i = 0; i < count; i++) {
        fields[i].result = fields[i].field == 186 && !g->no_instant ? OK : NOT_SUPPORTED;
        fields[i].value.ui = (unsigned)(draw_w(g) * 1e3 + .5);
    }
    leave();
    return OK;
}
int nvmlDeviceSetPowerManagementLimit(void *handle, unsigned mw) {
    if (!users) return UNINITIALIZED;
    if (!gpu_of(handle)) return INVALID;
    return set_limit((unsigned)((intptr_t)handle - 0x1000), mw, NO_PERMISSION, INVALID);
}
typedef struct { unsigned version, scope, mw; } value_t;
int nvmlDeviceSetPowerManagementLimit_v2(void *handle, value_t *value) {
    return value->scope ? NOT_SUPPORTED : nvmlDeviceSetPowerManagementLimit(handle, value->mw);
}
