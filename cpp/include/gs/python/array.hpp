// SPDX-License-Identifier: Apache-2.0
// Arrays that cross from Python: a checked view of anything that speaks DLPack (numpy, torch, cupy,
// jax).
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "gs/error.hpp"

namespace gs::python {

namespace py = pybind11;

// The layout of DLPack 1.3, written from its specification (dmlc.github.io/dlpack).
namespace dlpack {
struct Device {
  std::int32_t type;
  std::int32_t index;
};
struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null means C order
  std::uint64_t byte_offset;
};
struct Managed {
  Tensor tensor;
  void* manager;
  void (*deleter)(Managed*);
};
struct ManagedVersioned {
  std::uint32_t major, minor;
  void* manager;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};
/// What a type of arrays may have as __dlpack_c_exchange_api__: the exchange without calls of
/// Python. Of its functions only the one that is used here has its true type.
struct ExchangeApi {
  std::uint32_t major, minor;
  ExchangeApi* previous;
  void (*allocate)();
  int (*export_array)(void* object, ManagedVersioned** out);  // not 0: a Python error is set
};
constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaHost = 3;
constexpr std::uint8_t kInt = 0, kUint = 1, kFloat = 2, kBool = 6;
constexpr std::uint64_t kReadOnly = 1;
}  // namespace dlpack

/// In Array::shape(): any size.
constexpr std::int64_t kAny = -1;

/// A borrowed view of one array argument. Its checks name the argument and throw gs::Error or
/// gs::KindError; each returns the view, so that they chain. Holds the producer's capsule, so
/// destroy it with the GIL held.
class Array {
 public:
  Array(py::handle object, const char* name) : name_(name) {
    try {
      capsule_ = export_natively(object);
      if (!capsule_) capsule_ = export_capsule(object, name);
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_RuntimeError) && !error.matches(PyExc_BufferError) &&
          !error.matches(PyExc_ValueError))
        throw;
      const std::string reason = py::str(error.value()).cast<std::string>();
      detail::throw_error<KindError>(name, " must be an array that DLPack can pass on, got ",
                                     type_name(object), ": ", reason.substr(0, reason.find('\n')));
    }
    check_is_as_stored(object, name);
    const char* kind = PyCapsule_GetName(capsule_.ptr());
    if (kind != nullptr && std::strcmp(kind, "dltensor_versioned") == 0) {
      auto* managed =
          static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule_.ptr(), kind));
      tensor_ = &managed->tensor;
      read_only_ = (managed->flags & dlpack::kReadOnly) != 0;
    } else {
      tensor_ =
          &static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor"))->tensor;
    }
    const std::int32_t device = tensor_->device.type;
    GS_CHECK_AS(KindError,
                device == dlpack::kCpu || device == dlpack::kCuda || device == dlpack::kCudaHost,
                name, " must be on the CPU or a CUDA device, got DLPack device type ", device);
    GS_CHECK_AS(KindError, tensor_->data != nullptr || is_empty(), name, " must have memory, got ",
                type_name(object), " without any");
    // DLPack counts strides in elements, so that where the first is aligned, all are.
    const auto address = reinterpret_cast<std::uintptr_t>(bytes());
    GS_CHECK(is_empty() || address % alignment() == 0, name, " must be aligned to ", alignment(),
             " bytes, got an address ", address % alignment(),
             " beyond; pass a copy (copy() in numpy, clone() in torch)");
  }

  const std::string& name() const { return name_; }
  int ndim() const { return tensor_->ndim; }
  std::int64_t size(int axis) const { return tensor_->shape[axis]; }
  /// Elements from one row (first dimension) to the next.
  std::int64_t row_stride() const {
    return tensor_->strides != nullptr ? tensor_->strides[0] : inner_size();
  }
  /// Elements of one row.
  std::int64_t inner_size() const {
    std::int64_t n = 1;
    for (int i = 1; i < ndim(); ++i) n *= size(i);
    return n;
  }
  bool is_cuda() const { return tensor_->device.type == dlpack::kCuda; }
  /// The CUDA device's index; -1 on the CPU.
  int device() const { return is_cuda() ? tensor_->device.index : -1; }

  template <class T>
  bool is() const {
    using U = std::remove_const_t<T>;
    const dlpack::DataType& t = tensor_->dtype;
    const std::uint8_t code = std::is_same_v<U, bool>       ? dlpack::kBool
                              : std::is_floating_point_v<U> ? dlpack::kFloat
                              : std::is_signed_v<U>         ? dlpack::kInt
                                                            : dlpack::kUint;
    return t.lanes == 1 && t.code == code && t.bits == 8 * sizeof(U);
  }

  const Array& shape(std::initializer_list<std::int64_t> expected) const {
    bool same = ndim() == static_cast<int>(expected.size());
    int axis = 0;
    for (std::int64_t n : expected) {
      same = same && (n == kAny || size(axis) == n);
      ++axis;
    }
    GS_CHECK(same, name_, " must have shape ", shape_text(expected), ", got ", shape_text());
    return *this;
  }

  /// C order without gaps; an array without elements always is.
  const Array& contiguous() const {
    if (tensor_->strides == nullptr || is_empty()) return *this;
    std::int64_t expected = 1;
    for (int i = ndim() - 1; i >= 0; --i) {
      if (size(i) != 1 && tensor_->strides[i] != expected)
        detail::throw_error<Error>(
            name_, " must be contiguous, got strides that leave gaps or reorder it");
      expected *= size(i);
    }
    return *this;
  }

  /// C order within a row; rows may be further apart than they are wide.
  const Array& row_contiguous() const {
    if (tensor_->strides == nullptr || is_empty()) return *this;
    std::int64_t expected = 1;
    for (int i = ndim() - 1; i >= 1; --i) {
      if (size(i) != 1 && tensor_->strides[i] != expected)
        detail::throw_error<Error>(
            name_, " must have contiguous rows, got strides that leave gaps inside a row");
      expected *= size(i);
    }
    return *this;
  }

  const Array& writable() const {
    GS_CHECK(!read_only_, name_, " must be writable, got a read-only array");
    return *this;
  }

  /// On the given CUDA device, or on the CPU for -1.
  const Array& on(int expected) const {
    if (device() != expected)
      detail::throw_error<Error>(name_, " must be on ", device_text(expected), ", got ",
                                 device_text(device()));
    return *this;
  }

  /// The first element; throws gs::KindError unless the dtype is T's.
  template <class T>
  T* data() const {
    GS_CHECK_AS(KindError, is<T>(), name_, " must be ", dtype_text<T>(), ", got ", dtype_text());
    return reinterpret_cast<T*>(static_cast<char*>(tensor_->data) + tensor_->byte_offset);
  }

  /// The first byte, whatever the dtype.
  char* bytes() const { return static_cast<char*>(tensor_->data) + tensor_->byte_offset; }

  /// Bytes of one element.
  int item_bytes() const { return (tensor_->dtype.bits * tensor_->dtype.lanes + 7) / 8; }

  std::string dtype_text() const {
    const dlpack::DataType& t = tensor_->dtype;
    if (t.code == dlpack::kBool) return "bool";
    const char* kind = t.code == dlpack::kInt    ? "int"
                       : t.code == dlpack::kUint ? "uint"
                       : t.code == dlpack::kFloat
                           ? "float"
                           : "a type that is neither integer nor float of bits ";
    return kind + std::to_string(t.bits);
  }

  std::string shape_text() const {
    std::string text = "(";
    for (int i = 0; i < ndim(); ++i) text += (i > 0 ? ", " : "") + std::to_string(size(i));
    return text + ")";
  }

 private:
  /// What the processor asks of an element's address; wider elements are pairs of narrower ones.
  std::uintptr_t alignment() const { return std::min(std::max(item_bytes(), 1), 8); }

  /// Then strides may be anything.
  bool is_empty() const {
    for (int i = 0; i < ndim(); ++i)
      if (size(i) == 0) return true;
    return false;
  }

  static std::string type_name(py::handle object) {
    return py::str(py::type::of(object).attr("__name__")).cast<std::string>();
  }

  /// A view of torch's that negates what lies in memory; DLPack has no word for that.
  static void check_is_as_stored(py::handle object, const char* name) {
    static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
    const auto answer =
        py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object.ptr(), is_neg));
    if (!answer) {
      if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw py::error_already_set();
      PyErr_Clear();
      return;
    }
    GS_CHECK_AS(KindError, !py::cast<bool>(answer), name,
                " must be a tensor without the negative bit, got a view that negates; call its "
                "resolve_neg()");
  }

  /// A capsule from the type's own exchange, ten times faster than calling __dlpack__; nothing
  /// where the type has none that is known here.
  static py::object export_natively(py::handle object) {
    // Python finds names that are one object sooner than equal ones.
    static PyObject* const exchange = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
    const auto found = py::reinterpret_steal<py::object>(
        PyObject_GetAttr(py::type::handle_of(object).ptr(), exchange));
    if (!found) {
      PyErr_Clear();
      return {};
    }
    if (!PyCapsule_IsValid(found.ptr(), "dlpack_exchange_api")) return {};
    const auto* api = static_cast<const dlpack::ExchangeApi*>(
        PyCapsule_GetPointer(found.ptr(), "dlpack_exchange_api"));
    while (api != nullptr && api->major != 1) api = api->previous;
    if (api == nullptr || api->export_array == nullptr) return {};
    dlpack::ManagedVersioned* managed = nullptr;
    if (api->export_array(object.ptr(), &managed) != 0) throw py::error_already_set();
    PyObject* capsule = PyCapsule_New(managed, "dltensor_versioned", &destroy_capsule);
    if (capsule == nullptr) {
      managed->deleter(managed);
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(capsule);
  }

  static void destroy_capsule(PyObject* capsule) {
    auto* managed =
        static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->deleter != nullptr) managed->deleter(managed);
  }

  static py::object export_capsule(py::handle object, const char* name) {
    GS_CHECK_AS(KindError, py::hasattr(object, "__dlpack__"), name,
                " must be a numpy or torch array, got ", type_name(object));
    py::object source = py::reinterpret_borrow<py::object>(object);
    if (py::hasattr(source, "detach")) source = source.attr("detach")();
    py::object exporter = source.attr("__dlpack__");
    const auto device = source.attr("__dlpack_device__")().cast<py::tuple>();
    py::dict options;
    // -1 asks the producer not to synchronise: streams are ordered by the caller.
    if (device[0].cast<py::int_>().cast<int>() == dlpack::kCuda) options["stream"] = -1;
    try {
      py::dict versioned = options.attr("copy")();
      versioned["max_version"] = py::make_tuple(1, 0);
      return exporter(**versioned);
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_TypeError)) throw;  // a producer older than DLPack 1.0
    }
    return exporter(**options);
  }

  template <class T>
  static std::string dtype_text() {
    using U = std::remove_const_t<T>;
    if (std::is_same_v<U, bool>) return "bool";
    const char* kind = std::is_floating_point_v<U> ? "float" : std::is_signed_v<U> ? "int" : "uint";
    return kind + std::to_string(8 * sizeof(U));
  }

  static std::string shape_text(std::initializer_list<std::int64_t> expected) {
    std::string text = "(";
    for (std::int64_t n : expected)
      text += (text.size() > 1 ? ", " : "") + (n == kAny ? std::string("any") : std::to_string(n));
    return text + ")";
  }

  static std::string device_text(int device) {
    return device < 0 ? "the CPU" : "cuda:" + std::to_string(device);
  }

  std::string name_;
  py::object capsule_;
  const dlpack::Tensor* tensor_ = nullptr;
  bool read_only_ = false;
};

}  // namespace gs::python
