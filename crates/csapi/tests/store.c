/* A store lies on the device: store.c DEVICE */
#include "common.h"

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    CS_DEV_HANDLE device = NULL;
    EXPECT(CS_SUCCESS, csOpenCSx(argv[1], NULL, &device));
    CS_MEM_HANDLE memory = allocate(device, 4096);
    CsStorageRequest request = storage(device, CS_STORAGE_STORE_TYPE, memory, 0, 8);
    EXPECT(CS_NO_PERMISSIONS, csQueueStorageRequest(&request, NULL, NULL, NULL, NULL, NULL));
    request.u.BlockIo.Type = CS_STORAGE_LOAD_TYPE;
    EXPECT(CS_SUCCESS, csQueueStorageRequest(&request, NULL, NULL, NULL, NULL, NULL));
    EXPECT(CS_SUCCESS, csCloseCSx(device));
    puts("it is only read");
    return 0;
}
