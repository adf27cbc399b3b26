#include <torch/types.h>

#include "../binding_registry.h"

void mish_rows(const float* p, float* q, long n);

static torch::Tensor mish(torch::Tensor x) {
    auto y = torch::empty_like(x);
    mish_rows(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}

static void bind(pybind11::module& m) { m.def("mish", &mish); }
REGISTER_BINDING(mish, bind);
