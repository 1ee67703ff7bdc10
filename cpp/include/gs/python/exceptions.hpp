// SPDX-License-Identifier: Apache-2.0
// gs::Error and its kind as Python exceptions.
#pragma once

#include <pybind11/pybind11.h>

#include "gs/error.hpp"

namespace gs::python {

/// Adds `CudaError` (a RuntimeError) to the module and translates gs/error.hpp's types for this
/// module alone: every extension module of the project registers its own copy.
inline void register_exceptions(pybind11::module_& module) {
  static PyObject* cuda_error = nullptr;
  const std::string name =
      pybind11::str(module.attr("__name__")).cast<std::string>() + ".CudaError";
  cuda_error = PyErr_NewExceptionWithDoc(
      name.c_str(), "A call of the CUDA runtime failed, or this build or machine has no CUDA.",
      PyExc_RuntimeError, nullptr);
  module.attr("CudaError") = pybind11::handle(cuda_error);
  pybind11::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const CudaError& error) {
      PyErr_SetString(cuda_error, error.what());
    } catch (const MemoryError& error) {
      PyErr_SetString(PyExc_MemoryError, error.what());
    } catch (const RangeError& error) {
      PyErr_SetString(PyExc_IndexError, error.what());
    } catch (const KindError& error) {
      PyErr_SetString(PyExc_TypeError, error.what());
    } catch (const Error& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }
  });
}

}  // namespace gs::python
