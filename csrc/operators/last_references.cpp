#include "last_references.hpp"

namespace gdn_cuda {

void drop_arguments_with(WithGil hook) {
    with_gil.store(hook);
}

}  // namespace gdn_cuda
