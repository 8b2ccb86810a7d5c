// SPDX-License-Identifier: Apache-2.0
#include "ffi/backend.h"
#include "ffi/check.h"
#include "ffi/dispatch.h"
#include "ops/convert.h"

JI_DECLARE_RUN(ConvertArgs)

namespace jax_index {
namespace {

bool convert_type(XlaType type, ConvertType* out) {
  *out = {};
  out->bytes = (i32)item_bytes(type);
  switch (type) {
    case XlaType::PRED:
    case XlaType::U8:
    case XlaType::U16:
    case XlaType::U32:
    case XlaType::U64:
      out->format = Format::kUnsigned;
      return true;
    case XlaType::S8:
    case XlaType::S16:
    case XlaType::S32:
    case XlaType::S64:
      out->format = Format::kSigned;
      return true;
    case XlaType::F16:
      out->format = Format::kF16;
      return true;
    case XlaType::BF16:
      out->format = Format::kBF16;
      return true;
    case XlaType::C64:
      out->bytes = 4;
      out->parts = 2;
      return true;
    case XlaType::F32:
      return true;
    case XlaType::C128:
      out->bytes = 8;
      out->parts = 2;
      out->format = Format::kF64;
      return true;
    case XlaType::F64:
      out->format = Format::kF64;
      return true;
    default:
      out->format = Format::kMini;
      return mini_float(type, &out->mini);
  }
}

ffi::Error convert(ContextArgument context, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out,
                   bool float4_in, bool float4_out) {
  ConvertArgs a;
  JI_CHECK(convert_type(x.element_type(), &a.from), "convert", "x", "a numeric dtype",
           (int)x.element_type());
  JI_CHECK(convert_type(out->element_type(), &a.to), "convert", "result", "a numeric dtype",
           (int)out->element_type());
  JI_CHECK(x.element_count() == out->element_count(), "convert", "x", "the result's size",
           x.element_count());
  const ConvertType float4 = {Format::kMini, 1, 1, kFloat4};
  if (float4_in) a.from = float4;
  if (float4_out) a.to = float4;
  a.x = x.untyped_data();
  a.out = out->untyped_data();
  a.count = (i64)x.element_count();
  if (a.count == 0) return ffi::Error::Success();
  run_on(device_of(context), a);
  return launch_status("convert");
}

}  // namespace

JI_HANDLER(convert_handler, convert,
           ffi::Ffi::Bind()
               .Ctx<Context>()
               .Arg<ffi::AnyBuffer>()
               .Ret<ffi::AnyBuffer>()
               .Attr<bool>("float4_in")
               .Attr<bool>("float4_out"));

}  // namespace jax_index
