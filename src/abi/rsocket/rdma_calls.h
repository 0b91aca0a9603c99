// The calls of librdmacm.so.1 that rsockets are made of, as this library has them inside.
#pragma once
#include <rdma/rdma_cma.h>

extern "C" {
rdma_event_channel* entry_rdma_create_event_channel();
void entry_rdma_destroy_event_channel(rdma_event_channel* channel);
int entry_rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** event);
int entry_rdma_ack_cm_event(rdma_cm_event* event);

int entry_rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context,
                         rdma_port_space space);
int entry_rdma_destroy_id(rdma_cm_id* id);
int entry_rdma_migrate_id(rdma_cm_id* id, rdma_event_channel* channel);
int entry_rdma_set_option(rdma_cm_id* id, int level, int option, void* value, size_t bytes);

int entry_rdma_bind_addr(rdma_cm_id* id, sockaddr* address);
int entry_rdma_listen(rdma_cm_id* id, int backlog);
int entry_rdma_resolve_addr(rdma_cm_id* id, sockaddr* source, sockaddr* destination,
                            int timeout_ms);
int entry_rdma_resolve_route(rdma_cm_id* id, int timeout_ms);
int entry_rdma_connect(rdma_cm_id* id, rdma_conn_param* param);
int entry_rdma_accept(rdma_cm_id* id, rdma_conn_param* param);
int entry_rdma_reject(rdma_cm_id* id, const void* bytes, uint8_t size);

int entry_rdma_create_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* attributes);
void entry_rdma_destroy_qp(rdma_cm_id* id);
}
