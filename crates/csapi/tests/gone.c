/* The drive ends while a program has a device of it: gone.c DEVICE. Says "ready", and goes on at a line of input. */
#include "common.h"

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    CS_DEV_HANDLE device = NULL;
    EXPECT(CS_SUCCESS, tapetumCreateCSx(argv[1], 1 << 20));
    EXPECT(CS_SUCCESS, csOpenCSx(argv[1], NULL, &device));
    CS_MEM_HANDLE memory = allocate(device, 4096);
    CsStorageRequest request = storage(device, CS_STORAGE_STORE_TYPE, memory, 0, 8);
    EXPECT(CS_SUCCESS, csQueueStorageRequest(&request, NULL, NULL, NULL, NULL, NULL));
    puts("ready");
    fflush(stdout);
    CHECK(getchar() == '\n');
    EXPECT(CS_DEVICE_NOT_AVAILABLE, csQueueStorageRequest(&request, NULL, NULL, NULL, NULL, NULL));
    request.u.BlockIo.Type = CS_STORAGE_LOAD_TYPE;
    EXPECT(CS_DEVICE_NOT_AVAILABLE, csQueueStorageRequest(&request, NULL, NULL, NULL, NULL, NULL));
    CS_EVT_HANDLE event = NULL;
    EXPECT(CS_SUCCESS, csCreateEvent(&event));
    EXPECT(CS_QUEUED, csQueueStorageRequest(&request, NULL, NULL, event, NULL, NULL));
    CS_STATUS status;
    while ((status = csPollEvent(event, NULL)) == CS_NOT_DONE)
        ;
    EXPECT(CS_DEVICE_NOT_AVAILABLE, status);
    EXPECT(CS_SUCCESS, csCloseCSx(device));
    EXPECT(CS_NO_SUCH_ENTITY_EXISTS, csOpenCSx(argv[1], NULL, &device));
    puts("it is gone");
    return 0;
}
