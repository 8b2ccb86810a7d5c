// SPDX-License-Identifier: Apache-2.0
#include "ffi/static_arrays.h"

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

#if defined(JI_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace jax_index {
namespace {

constexpr std::string_view kAttribute = "static";

struct Record {
  std::string key;
  std::vector<StaticArray> arrays;
  std::map<int, std::vector<const void*>> on_device;
  std::map<int, void*> copies;  // one block of memory for each device, made here
  int64_t bytes = 0;
  int users = 0;
};

// Never destroyed: threads of XLA may outlive the static objects of this module.
struct Table {
  std::mutex mutex;
  std::condition_variable idle;
  std::unordered_map<std::string, std::shared_ptr<Record>> records;  // what a key means now
  std::unordered_map<int64_t, std::shared_ptr<Record>> numbered;     // all that were not dropped
  int64_t next = 0;
};
Table& table() {
  static Table* table = new Table;
  return *table;
}

// A record in use: static_drop waits for it.
class Pin {
 public:
  explicit Pin(const std::string& key) {
    const std::lock_guard<std::mutex> lock(table().mutex);
    const auto found = table().records.find(key);
    if (found == table().records.end()) return;
    record_ = found->second;
    ++record_->users;
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  Pin(Pin&& other) noexcept : record_(std::move(other.record_)) {}
  ~Pin() {
    if (!record_) return;
    const std::lock_guard<std::mutex> lock(table().mutex);
    if (--record_->users == 0) table().idle.notify_all();
  }
  Record* get() const { return record_.get(); }

 private:
  std::shared_ptr<Record> record_;
};

XLA_FFI_Error* error(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, const std::string& text) {
  XLA_FFI_Error_Create_Args args;
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.extension_start = nullptr;
  args.message = text.c_str();
  args.errc = code;
  return api->XLA_FFI_Error_Create(&args);
}

// The attribute's place among the sorted ones, or -1.
int64_t find_attribute(const XLA_FFI_Attrs& attrs) {
  for (int64_t k = 0; k < attrs.size; ++k) {
    const XLA_FFI_ByteSpan& name = *attrs.names[k];
    if (std::string_view(name.ptr, name.len) == kAttribute &&
        attrs.types[k] == XLA_FFI_AttrType_STRING)
      return k;
  }
  return -1;
}

struct Reference {
  int64_t operand;
  std::string key;
  size_t array;
};

// Empty where the text is none of ours.
std::vector<Reference> parse(const XLA_FFI_Attrs& attrs, int64_t at) {
  const auto* span = static_cast<const XLA_FFI_ByteSpan*>(attrs.attrs[at]);
  std::string_view text(span->ptr, span->len);
  std::vector<Reference> out;
  const auto number = [](std::string_view digits) {
    return std::strtoll(std::string(digits).c_str(), nullptr, 10);
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find(';'), text.size());
    const std::string_view one = text.substr(0, end);
    const size_t equals = one.find('='), slash = one.rfind('/');
    if (equals == one.npos || slash == one.npos || slash < equals) return {};
    out.push_back({number(one.substr(0, equals)),
                   std::string(one.substr(equals + 1, slash - equals - 1)),
                   (size_t)number(one.substr(slash + 1))});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string unknown(const char* op, const std::string& key) {
  return std::string("jax_index.") + op +
         ": static plan must be known to this process, got the digest " + key +
         " of a plan that is not; load it before the program runs and keep it: plan = "
         "jax_index.IndexPlan.load(path).static, or jax_index.Graph.load(path).static.";
}

#if defined(JI_CUDA)

bool device_of(const XLA_FFI_CallFrame* frame, int* device) {
  XLA_FFI_DeviceOrdinal_Get_Args args;
  args.struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE;
  args.extension_start = nullptr;
  args.ctx = frame->ctx;
  args.device_ordinal = 0;
  if (XLA_FFI_Error* failed = frame->api->XLA_FFI_DeviceOrdinal_Get(&args)) {
    XLA_FFI_Error_Destroy_Args destroy;
    destroy.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
    destroy.extension_start = nullptr;
    destroy.error = failed;
    frame->api->XLA_FFI_Error_Destroy(&destroy);
    return cudaGetDevice(device) == cudaSuccess;
  }
  *device = args.device_ordinal;
  return true;
}

// Another device for the life of this object.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    cudaGetDevice(&before_);
    cudaSetDevice(device);
  }
  ~OnDevice() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

// One block for all arrays, each on a boundary of 256 bytes. Called with the table locked.
cudaError_t copy_to(Record* record, int device) {
  if (record->on_device.count(device)) return cudaSuccess;
  const OnDevice guard(device);
  size_t total = 0;
  std::vector<size_t> starts, sizes;
  for (const StaticArray& array : record->arrays) {
    size_t bytes = sizeof(int32_t);
    for (int64_t dim : array.dims) bytes *= (size_t)dim;
    starts.push_back(total);
    sizes.push_back(bytes);
    total += (bytes + 255) / 256 * 256;
  }
  void* block = nullptr;
  cudaStream_t stream = nullptr;
  cudaError_t status = cudaMalloc(&block, total ? total : 1);
  // A stream of its own: the default one would wait for every other.
  if (status == cudaSuccess) status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  std::vector<const void*> pointers;
  for (size_t k = 0; k < starts.size() && status == cudaSuccess; ++k) {
    char* to = static_cast<char*>(block) + starts[k];
    pointers.push_back(to);
    if (sizes[k])
      status =
          cudaMemcpyAsync(to, record->arrays[k].host, sizes[k], cudaMemcpyHostToDevice, stream);
  }
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  if (stream) cudaStreamDestroy(stream);
  if (status != cudaSuccess) {
    if (block) cudaFree(block);
    cudaGetLastError();
    return status;
  }
  record->on_device[device] = std::move(pointers);
  record->copies[device] = block;
  return cudaSuccess;
}

#endif

// Where an array lies for this call; null with a text where it cannot be had.
const void* locate(Record* record, size_t array, int device, std::string* why) {
#if defined(JI_CUDA)
  const std::lock_guard<std::mutex> lock(table().mutex);
  const cudaError_t status = copy_to(record, device);
  if (status != cudaSuccess) {
    *why = std::string("a static plan does not fit on the device: ") + cudaGetErrorString(status);
    return nullptr;
  }
  return record->on_device[device][array];
#else
  (void)device;
  (void)why;
  return record->arrays[array].host;
#endif
}

bool is_metadata(const XLA_FFI_CallFrame* frame) {
  return frame->extension_start != nullptr &&
         frame->extension_start->type == XLA_FFI_Extension_Metadata;
}

}  // namespace

int64_t static_put(const std::string& key, std::vector<StaticArray> arrays) {
  auto record = std::make_shared<Record>();
  record->key = key;
  record->arrays = std::move(arrays);
  for (const StaticArray& array : record->arrays) {
    int64_t bytes = sizeof(int32_t);
    for (int64_t dim : array.dims) bytes *= dim;
    record->bytes += bytes;
  }
  const std::lock_guard<std::mutex> lock(table().mutex);
  const int64_t number = table().next++;
  table().records[key] = record;
  table().numbered[number] = std::move(record);
  return number;
}

void static_place(const std::string& key, int device, const std::vector<uintptr_t>& pointers) {
  const std::lock_guard<std::mutex> lock(table().mutex);
  const auto found = table().records.find(key);
  if (found == table().records.end() || found->second->arrays.size() != pointers.size())
    throw std::invalid_argument("no static arrays of this key and number");
  auto& place = found->second->on_device[device];
  if (!place.empty()) return;
  for (uintptr_t pointer : pointers) place.push_back(reinterpret_cast<const void*>(pointer));
}

void static_drop(int64_t number) {
  std::shared_ptr<Record> record;
  std::unique_lock<std::mutex> lock(table().mutex);
  const auto found = table().numbered.find(number);
  if (found == table().numbered.end()) return;
  record = found->second;
  table().numbered.erase(found);
  const auto meant = table().records.find(record->key);
  if (meant != table().records.end() && meant->second == record) table().records.erase(meant);
  table().idle.wait(lock, [&] { return record->users == 0; });
  lock.unlock();
#if defined(JI_CUDA)
  // Kernels that were launched may still read them; so may those that read the caller's copies.
  for (const auto& [device, pointers] : record->on_device) {
    const OnDevice guard(device);
    cudaDeviceSynchronize();
    const auto copy = record->copies.find(device);
    if (copy != record->copies.end()) cudaFree(copy->second);
  }
#endif
}

std::vector<std::pair<int, int64_t>> static_copies(const std::string& key) {
  const std::lock_guard<std::mutex> lock(table().mutex);
  std::vector<std::pair<int, int64_t>> out;
  const auto found = table().records.find(key);
  if (found == table().records.end()) return out;
  for (const auto& copy : found->second->copies) out.emplace_back(copy.first, found->second->bytes);
  return out;
}

XLA_FFI_Error* with_static_operands(const char* op, XLA_FFI_Handler* handler,
                                    XLA_FFI_CallFrame* frame) {
  const int64_t at = is_metadata(frame) ? -1 : find_attribute(frame->attrs);
  if (at < 0) return handler(frame);
  const std::vector<Reference> references = parse(frame->attrs, at);

  XLA_FFI_CallFrame call = *frame;
  std::vector<void*> args(frame->args.args, frame->args.args + frame->args.size);
  std::vector<XLA_FFI_Buffer> buffers(references.size());
  std::vector<Pin> pins;
  int device = 0;
#if defined(JI_CUDA)
  if (!device_of(frame, &device))
    return error(frame->api, XLA_FFI_Error_Code_INTERNAL, "jax_index: the device is not known");
#endif
  for (size_t k = 0; k < references.size(); ++k) {
    const Reference& it = references[k];
    // The operands of one plan stand together: one pin serves them.
    if (k == 0 || references[k - 1].key != it.key) pins.emplace_back(it.key);
    Record* record = pins.back().get();
    if (!record) return error(frame->api, XLA_FFI_Error_Code_NOT_FOUND, unknown(op, it.key));
    if (it.operand < 0 || it.operand >= frame->args.size || it.array >= record->arrays.size())
      return error(frame->api, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                   std::string("jax_index.") + op + ": a static operand out of range");
    std::string why;
    const void* data = locate(record, it.array, device, &why);
    if (!data && !why.empty())
      return error(frame->api, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                   std::string("jax_index.") + op + ": " + why);
    StaticArray& array = record->arrays[it.array];
    buffers[k] = *static_cast<const XLA_FFI_Buffer*>(frame->args.args[it.operand]);
    buffers[k].data = const_cast<void*>(data);
    buffers[k].rank = (int64_t)array.dims.size();
    buffers[k].dims = array.dims.data();
    args[it.operand] = &buffers[k];
  }
  call.args.args = args.data();

  // Handlers take the attributes that they name and no others.
  std::vector<XLA_FFI_AttrType> types;
  std::vector<XLA_FFI_ByteSpan*> names;
  std::vector<void*> attrs;
  for (int64_t k = 0; k < frame->attrs.size; ++k) {
    if (k == at) continue;
    types.push_back(frame->attrs.types[k]);
    names.push_back(frame->attrs.names[k]);
    attrs.push_back(frame->attrs.attrs[k]);
  }
  call.attrs.size = (int64_t)names.size();
  call.attrs.types = types.data();
  call.attrs.names = names.data();
  call.attrs.attrs = attrs.data();
  XLA_FFI_Error* result = handler(&call);
  frame->future = call.future;
  return result;
}

extern "C" XLA_FFI_Error* static_initialize(XLA_FFI_CallFrame* frame) {
  if (is_metadata(frame)) {
    auto* extension = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start);
    extension->metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    extension->metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    return nullptr;
  }
#if defined(JI_CUDA)
  const int64_t at = find_attribute(frame->attrs);
  int device = 0;
  if (at < 0 || !device_of(frame, &device)) return nullptr;
  for (const Reference& it : parse(frame->attrs, at)) {
    const Pin pin(it.key);
    std::string why;
    // What is unknown or does not fit is said when the call runs.
    if (pin.get() && it.array < pin.get()->arrays.size()) locate(pin.get(), it.array, device, &why);
  }
#endif
  return nullptr;
}

}  // namespace jax_index
