// Converts text with paths or compiler output to Python: bytes that are not UTF-8 become surrogates, as in os.fsdecode.
#pragma once

#include <pybind11/pybind11.h>

#include <filesystem>
#include <string>
#include <vector>

namespace gdn_cuda {

inline pybind11::str to_python(const std::string& text) {
    PyObject* decoded = PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
    if (decoded == nullptr) throw pybind11::error_already_set();
    return pybind11::reinterpret_steal<pybind11::str>(decoded);
}

inline pybind11::str to_python(const std::filesystem::path& path) {
    return to_python(path.string());
}

inline pybind11::list to_python(const std::vector<std::string>& texts) {
    pybind11::list result;
    for (const std::string& text : texts) result.append(to_python(text));
    return result;
}

}  // namespace gdn_cuda
