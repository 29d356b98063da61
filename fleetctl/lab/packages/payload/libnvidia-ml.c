/* Stand-in of the fleetctl lab for NVML: same names, numbers and texts (nvml.h), facts from the lab's boot unit. */
#include "driver.h"

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    LIB_RM_VERSION_MISMATCH = 18
};

static int initialized, gpu_count;
static char *gpus[LAB_MAX_GPUS], loaded[64];

int nvmlInit_v2(void)
{
    if (!lab_loaded_version(loaded, sizeof(loaded)) || access("/dev/nvidiactl", F_OK) != 0)
        return DRIVER_NOT_LOADED;
    if (strcmp(loaded, VERSION) != 0)
        return LIB_RM_VERSION_MISMATCH;
    if (!initialized)
        gpu_count = lab_gpus(gpus);
    initialized = 1;
    return SUCCESS;
}

int nvmlInit(void)
{
    return nvmlInit_v2();
}

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return nvmlInit_v2();
}

int nvmlShutdown(void)
{
    if (!initialized)
        return UNINITIALIZED;
    initialized = 0;
    return SUCCESS;
}

static int copy_text(char *to, unsigned int size, const char *text)
{
    if (to == NULL)
        return INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

/* Answers without a driver: the version is the library's own, led by its CUDA major version. */
int nvmlSystemGetNVMLVersion(char *version, unsigned int size)
{
    char text[96];

    snprintf(text, sizeof(text), "%d.%s", CUDA_VERSION / 1000, VERSION);
    return copy_text(version, size, text);
}

int nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
    return initialized ? copy_text(version, size, loaded) : UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = CUDA_VERSION;
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (!initialized)
        return UNINITIALIZED;
    *count = (unsigned int)gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
    if (!initialized)
        return UNINITIALIZED;
    if (index >= (unsigned int)gpu_count)
        return INVALID_ARGUMENT;
    *device = gpus[index];
    return SUCCESS;
}

static int information(const char *address, const char *key, char *text, unsigned int size)
{
    char path[160], line[256], *value;
    int found = NOT_FOUND;
    FILE *file;

    snprintf(path, sizeof(path), LAB_GPUS "/%.64s/information", address);
    file = fopen(path, "r");
    if (file == NULL)
        return NOT_FOUND;
    while (found == NOT_FOUND && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        value = strchr(line, ':');
        if (value == NULL)
            continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = '\0';
        found = copy_text(text, size, value);
    }
    fclose(file);
    return found;
}

int nvmlDeviceGetName(const char *device, char *name, unsigned int size)
{
    return information(device, "Model", name, size);
}

int nvmlDeviceGetUUID(const char *device, char *uuid, unsigned int size)
{
    return information(device, "GPU UUID", uuid, size);
}

int nvmlDeviceGetMinorNumber(const char *device, unsigned int *minor)
{
    char text[16];
    int error = information(device, "Device Minor", text, sizeof(text));

    if (error == SUCCESS)
        *minor = (unsigned int)strtoul(text, NULL, 10);
    return error;
}

const char *nvmlErrorString(int error)
{
    switch (error) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}
