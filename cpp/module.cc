// SPDX-License-Identifier: Apache-2.0
// The Python module: compiled once as _cpu and once as _cuda. registrations() lists the handlers of
// every op named in CMakeLists.txt.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <thread>

#include "ffi/static_arrays.h"
#include "xla/ffi/api/c_api.h"

#if defined(JI_CUDA)
#include <cuda_runtime_api.h>
#else
#include "ffi/backend.h"
#include "plan/plan.h"
#endif

namespace nb = nanobind;

#define JI_OP(name)                                                   \
  namespace jax_index {                                               \
  extern "C" XLA_FFI_Error* name##_handler(XLA_FFI_CallFrame* frame); \
  }
#include "jax_index_ops.inc"
#undef JI_OP
#if !defined(JI_CUDA)
namespace jax_index {
extern "C" XLA_FFI_Error* plan_of_ids_handler(XLA_FFI_CallFrame* frame);
}
#endif

namespace {

nb::dict registrations() {
  nb::dict out;
  const auto capsule = [](XLA_FFI_Handler* handler) {
    return nb::capsule(reinterpret_cast<void*>(handler));
  };
#if defined(JI_CUDA)
  // XLA's CPU back end never calls the initialize stage, and has no use for it.
#define JI_OP(name)                                               \
  {                                                               \
    nb::dict stages;                                              \
    stages["initialize"] = capsule(jax_index::static_initialize); \
    stages["execute"] = capsule(jax_index::name##_handler);       \
    out[#name] = stages;                                          \
  }
#else
#define JI_OP(name) out[#name] = capsule(jax_index::name##_handler);
#endif
#include "jax_index_ops.inc"
#undef JI_OP
#if !defined(JI_CUDA)
  out["plan_of_ids"] = capsule(jax_index::plan_of_ids_handler);
#endif
  return out;
}

nb::dict build_info() {
  nb::dict out;
  out["ffi_api_version"] = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  out["version"] = JI_VERSION;
  out["compiler"] = JI_COMPILER;
#if defined(JI_CUDA)
  out["cuda_runtime"] = CUDART_VERSION;
  out["cuda_architectures"] = JI_CUDA_ARCHITECTURES;
#else
  out["cpu_target"] = jax_index::cpu_target_name();
#endif
  return out;
}

using StaticOperand = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;

// The caller keeps the arrays alive until static_drop returns.
int64_t static_put(const std::string& key, const std::vector<StaticOperand>& arrays) {
  std::vector<jax_index::StaticArray> out;
  for (const StaticOperand& array : arrays) {
    jax_index::StaticArray one{array.data(), {}};
    for (size_t d = 0; d < array.ndim(); ++d) one.dims.push_back((int64_t)array.shape(d));
    out.push_back(std::move(one));
  }
  return jax_index::static_put(key, std::move(out));
}

#if !defined(JI_CUDA)

template <class T>
using Host = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out = Host<int32_t>;

jax_index::PlanArrays arrays(Out& ids, Out& indptr, Out& perm, Out& tasks) {
  return {ids.data(), indptr.data(), perm.data(), tasks.data()};
}

nb::tuple facts(const jax_index::PlanFacts& f) {
  return nb::make_tuple(f.first_bad, f.identity, f.no_long_row);
}

void check_sizes(size_t num_edges, Out& ids, Out& indptr, Out& perm, Out& tasks) {
  if (ids.size() != num_edges || perm.size() != num_edges || indptr.size() == 0 ||
      tasks.size() != 2 * (size_t)jax_index::max_tasks((int64_t)num_edges))
    throw nb::value_error("plan arrays have the wrong size");
}

nb::tuple build_plan(nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu> ids, bool drop,
                     Out out_ids, Out indptr, Out perm, Out tasks) {
  using jax_index::IdType;
  check_sizes(ids.size(), out_ids, indptr, perm, tasks);
  const nb::dlpack::dtype type = ids.dtype();
  const bool is_signed = type.code == (uint8_t)nb::dlpack::dtype_code::Int;
  if (!is_signed && type.code != (uint8_t)nb::dlpack::dtype_code::UInt)
    throw nb::type_error("ids must be integers");
  IdType id_type;
  switch (type.bits) {
    case 8:
      id_type = is_signed ? IdType::kI8 : IdType::kU8;
      break;
    case 16:
      id_type = is_signed ? IdType::kI16 : IdType::kU16;
      break;
    case 32:
      id_type = is_signed ? IdType::kI32 : IdType::kU32;
      break;
    default:
      id_type = is_signed ? IdType::kI64 : IdType::kU64;
  }
  const auto out = arrays(out_ids, indptr, perm, tasks);
  jax_index::PlanFacts f;
  {
    nb::gil_scoped_release release;
    f = jax_index::build_plan(ids.data(), id_type, (int64_t)ids.size(), (int64_t)indptr.size() - 1,
                              drop, (int)std::thread::hardware_concurrency(), out);
  }
  return facts(f);
}

nb::tuple build_plan_from_indptr(Out ids, Out indptr, Out perm, Out tasks) {
  check_sizes(ids.size(), ids, indptr, perm, tasks);
  jax_index::PlanFacts f;
  {
    nb::gil_scoped_release release;
    f = jax_index::build_plan_from_indptr((int64_t)ids.size(), (int64_t)indptr.size() - 1,
                                          arrays(ids, indptr, perm, tasks));
  }
  return facts(f);
}

#endif

}  // namespace

NB_MODULE(JI_MODULE, m) {
  m.def("registrations", &registrations);
  m.def("build_info", &build_info);
  m.def("static_put", &static_put, nb::arg("key"), nb::arg("arrays"));
  m.def("static_place", &jax_index::static_place, nb::arg("key"), nb::arg("device"),
        nb::arg("pointers"));
  m.def("static_drop", &jax_index::static_drop, nb::arg("number"),
        nb::call_guard<nb::gil_scoped_release>());
  m.def("static_copies", &jax_index::static_copies, nb::arg("key"));
#if !defined(JI_CUDA)
  m.def("build_plan", &build_plan, nb::arg("ids").noconvert(), nb::arg("drop"), nb::arg("out_ids"),
        nb::arg("indptr"), nb::arg("perm"), nb::arg("tasks"));
  m.def("build_plan_from_indptr", &build_plan_from_indptr, nb::arg("ids"), nb::arg("indptr"),
        nb::arg("perm"), nb::arg("tasks"));
#endif
}
