// Opens and closes the first device a hundred times, with a domain, a region, two queues and a
// queue pair each time, and says on stderr whether descriptors or threads were left behind.
// Nothing goes to stdout: what appears there was printed by the library.
#include <dirent.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

static int entries(const char* directory) {
  int count = 0;
  const struct dirent* entry;
  DIR* open_directory = opendir(directory);
  CHECK(open_directory != NULL);
  while ((entry = readdir(open_directory)) != NULL) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(open_directory);
  return count;
}

static void open_and_close(void) {
  static char buffer[10000];
  struct ibv_device** list = ibv_get_device_list(NULL);
  CHECK(list != NULL && list[0] != NULL);
  struct ibv_context* context = ibv_open_device(list[0]);
  CHECK(context != NULL);
  struct ibv_pd* domain = ibv_alloc_pd(context);
  CHECK(domain != NULL);
  struct ibv_mr* region = ibv_reg_mr(domain, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
  CHECK(region != NULL);
  struct ibv_comp_channel* channel = ibv_create_comp_channel(context);
  CHECK(channel != NULL);
  struct ibv_cq* queue = ibv_create_cq(context, 16, NULL, channel, 0);
  CHECK(queue != NULL);
  struct ibv_qp_init_attr attributes;
  memset(&attributes, 0, sizeof(attributes));
  attributes.send_cq = queue;
  attributes.recv_cq = queue;
  attributes.cap.max_send_wr = 4;
  attributes.cap.max_recv_wr = 4;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  attributes.qp_type = IBV_QPT_RC;
  struct ibv_qp* pair = ibv_create_qp(domain, &attributes);
  CHECK(pair != NULL);
  CHECK(ibv_destroy_qp(pair) == 0);
  CHECK(ibv_destroy_cq(queue) == 0);
  CHECK(ibv_destroy_comp_channel(channel) == 0);
  CHECK(ibv_dereg_mr(region) == 0);
  CHECK(ibv_dealloc_pd(domain) == 0);
  CHECK(ibv_close_device(context) == 0);
  ibv_free_device_list(list);
}

int main(void) {
  const int descriptors = entries("/proc/self/fd");
  const int threads = entries("/proc/self/task");
  for (int round = 0; round < 100; ++round) open_and_close();
  const int descriptors_after = entries("/proc/self/fd");
  const int threads_after = entries("/proc/self/task");
  fprintf(stderr, "descriptors %d -> %d, threads %d -> %d\n", descriptors, descriptors_after,
          threads, threads_after);
  return descriptors == descriptors_after && threads == threads_after ? 0 : 1;
}
