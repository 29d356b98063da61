/* Stand-in of the fleetctl lab for a GPU: memory of the device is memory of the calling program. Errors, their
 * numbers and their order are those of the CUDA driver API (cuda.h). */
#include "driver.h"

#include <fcntl.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    SYSTEM_NOT_READY = 802,
    SYSTEM_DRIVER_MISMATCH = 803
};

typedef unsigned long long DevicePointer;
struct context {
    int device;
    int file; /* the device node, held open as a GPU program does */
    int primary_users;
};

static int initialized, gpu_count;
static char *gpus[LAB_MAX_GPUS];
static struct context *current, *primaries[LAB_MAX_GPUS];

int cuInit(unsigned int flags)
{
    char loaded[64];

    if (flags != 0)
        return INVALID_VALUE;
    if (!lab_loaded_version(loaded, sizeof(loaded)))
        return NO_DEVICE;
    if (strcmp(loaded, VERSION) != 0)
        return SYSTEM_DRIVER_MISMATCH;
    if (access("/dev/nvidiactl", R_OK | W_OK) != 0 || access("/dev/nvidia-uvm", R_OK | W_OK) != 0)
        return NO_DEVICE;
    if (!initialized)
        gpu_count = lab_gpus(gpus);
    if (gpu_count == 0)
        return NO_DEVICE;
    if (lab_has_nvswitch() && !lab_fabric_runs())
        return SYSTEM_NOT_READY;
    initialized = 1;
    return SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    if (!initialized)
        return NOT_INITIALIZED;
    *count = gpu_count;
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    if (!initialized)
        return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= gpu_count)
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *address, int size, int device)
{
    if (!initialized)
        return NOT_INITIALIZED;
    if (device < 0 || device >= gpu_count)
        return INVALID_DEVICE;
    snprintf(address, (size_t)size, "%s", gpus[device]);
    return SUCCESS;
}

static int open_context(struct context **made, int device)
{
    char path[256], line[256];
    int minor = device;
    FILE *information;
    struct context *context;

    if (!initialized)
        return NOT_INITIALIZED;
    if (device < 0 || device >= gpu_count)
        return INVALID_DEVICE;
    snprintf(path, sizeof(path), LAB_GPUS "/%.64s/information", gpus[device]);
    information = fopen(path, "r");
    if (information != NULL) {
        while (fgets(line, sizeof(line), information) != NULL)
            sscanf(line, "Device Minor: %d", &minor);
        fclose(information);
    }
    context = calloc(1, sizeof(*context));
    if (context == NULL)
        return OUT_OF_MEMORY;
    snprintf(path, sizeof(path), "/dev/nvidia%d", minor);
    context->device = device;
    context->file = open(path, O_RDWR);
    if (context->file < 0) {
        free(context);
        return INVALID_DEVICE;
    }
    *made = context;
    return SUCCESS;
}

static void close_context(struct context *context)
{
    if (current == context)
        current = NULL;
    close(context->file);
    free(context);
}

int cuCtxCreate_v2(struct context **made, unsigned int flags, int device)
{
    int error = open_context(made, device);

    (void)flags;
    if (error == SUCCESS)
        current = *made;
    return error;
}

int cuCtxDestroy_v2(struct context *context)
{
    if (context == NULL)
        return INVALID_CONTEXT;
    close_context(context);
    return SUCCESS;
}

int cuCtxSetCurrent(struct context *context)
{
    current = context;
    return SUCCESS;
}

int cuCtxSynchronize(void)
{
    return current == NULL ? INVALID_CONTEXT : SUCCESS;
}

int cuDevicePrimaryCtxRetain(struct context **made, int device)
{
    int error;

    if (device >= 0 && device < gpu_count && primaries[device] != NULL) {
        *made = primaries[device];
        (*made)->primary_users++;
        return SUCCESS;
    }
    error = open_context(made, device);
    if (error == SUCCESS) {
        (*made)->primary_users = 1;
        primaries[device] = *made;
    }
    return error;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    struct context *context;

    if (device < 0 || device >= gpu_count || primaries[device] == NULL)
        return INVALID_CONTEXT;
    context = primaries[device];
    if (--context->primary_users == 0) {
        primaries[device] = NULL;
        close_context(context);
    }
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease(int device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

int cuMemAlloc_v2(DevicePointer *pointer, size_t size)
{
    void *memory;

    if (current == NULL)
        return INVALID_CONTEXT;
    if (size == 0)
        return INVALID_VALUE;
    memory = malloc(size);
    if (memory == NULL)
        return OUT_OF_MEMORY;
    *pointer = (DevicePointer)(size_t)memory;
    return SUCCESS;
}

int cuMemFree_v2(DevicePointer pointer)
{
    if (current == NULL)
        return INVALID_CONTEXT;
    free((void *)(size_t)pointer);
    return SUCCESS;
}

int cuMemcpyHtoD_v2(DevicePointer to, const void *from, size_t size)
{
    if (current == NULL)
        return INVALID_CONTEXT;
    memcpy((void *)(size_t)to, from, size);
    return SUCCESS;
}

int cuMemcpyDtoH_v2(void *to, DevicePointer from, size_t size)
{
    if (current == NULL)
        return INVALID_CONTEXT;
    memcpy(to, (const void *)(size_t)from, size);
    return SUCCESS;
}

int cuGetErrorName(int error, const char **name)
{
    switch (error) {
    case SUCCESS: *name = "CUDA_SUCCESS"; break;
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case SYSTEM_NOT_READY: *name = "CUDA_ERROR_SYSTEM_NOT_READY"; break;
    case SYSTEM_DRIVER_MISMATCH: *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; break;
    default: *name = NULL; return INVALID_VALUE;
    }
    return SUCCESS;
}
