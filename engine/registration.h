#pragma once

#include "onnxfuse.h"
#include "ort_api.h"

namespace engine {

ort::Status* add_domain(ort::SessionOptions*, const ort::ApiBase*, const onnxfuse_ops&);

// What is staged, else the pack that the options name, else the one beside this library.
ort::Status* add_what_is_there(ort::SessionOptions*, const ort::ApiBase*);

void stage(const onnxfuse_ops*);

}  // namespace engine
