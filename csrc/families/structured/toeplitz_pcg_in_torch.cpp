// Large symmetric positive definite Toeplitz systems: preconditioned conjugate gradients with torch's FFTs, in O(n) memory.
//
// The preconditioner divides by the Fejér mean of T's generating function, sum over |d| < n of (1 - |d|/n) t_d e^{i w d} =
// a^H T a / n with a_j = e^{i w j}, at the frequencies of a circulant matrix of order >= 2 n: positive if T is positive
// definite. So the preconditioner is a corner of the inverse of that matrix.
#include <bit>

#include "../../operators/torch_math.hpp"
#include "toeplitz.hpp"

namespace gdn_cuda::structured {
namespace {

using math::number;

constexpr int kMostSteps = 60, kStepsPerCheck = 5;  // a check synchronises with the device
constexpr double kMinDivisor = 1e-300;              // lower bound of the divisor

// Products with a corner of a symmetric circulant matrix, and with a corner of the inverse of another.
class Corner {
  public:
    explicit Corner(const Tensor& column) : n_(column.size(-1)), order_(fast_order(n_)) {
        const Tensor places = torch::stable::subtract(math::counts(n_, column), number(1));
        const Tensor weights = math::add(math::mul(places, number(-1.0 / static_cast<double>(n_))), number(1));
        matrix_ = spectrum(column);
        mean_ = spectrum(math::mul(column, weights));
        inverse_mean_ = math::div(number(1), mean_);
    }
    Tensor times(const Tensor& x) const { return apply(matrix_, x); }
    Tensor preconditioned(const Tensor& x) const { return apply(inverse_mean_, x); }
    Tensor mean_is_positive() const { return math::all(math::greater(mean_, number(0))); }

  private:
    static int64_t fast_order(int64_t n) {
        const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * n - 1)));
        return power >= 4 && power * 3 / 4 >= 2 * n - 1 ? power * 3 / 4 : power;
    }
    Tensor spectrum(const Tensor& column) const {
        const Tensor gap = math::zeros(column, {column.size(0), order_ - 2 * n_ + 1});
        const Tensor around = math::cat({column, gap, math::flip(math::without_first(column))}, -1);
        return torch::stable::unsqueeze(math::real(math::transform("aten::fft_rfft", around)), 1);
    }
    Tensor apply(const Tensor& spectrum, const Tensor& x) const {
        const Tensor product = math::mul(spectrum, math::transform("aten::fft_rfft", x, order_));
        return math::narrow(math::transform("aten::fft_irfft", product, order_), -1, 0, n_);
    }

    int64_t n_, order_;
    Tensor matrix_, mean_, inverse_mean_;
};

Tensor squared_norm(const Tensor& x) {
    return math::sum(math::mul(x, x), -1);
}
Tensor product_of(const Tensor& x, const Tensor& y) {
    return math::sum(math::mul(x, y), -1, true);
}
// Reads two flags in one synchronisation with the device.
std::pair<bool, bool> read(const Tensor& first, const Tensor& second) {
    if (explaining()) return {true, true};
    const Tensor both = math::cat({math::reshape(first, {1}), math::reshape(second, {1})}, 0);
    const Tensor here = torch::stable::to(both, torch::stable::Device(torch::headeronly::DeviceType::CPU));
    const auto* const values = static_cast<const bool*>(here.data_ptr());
    return {values[0], values[1]};
}

}  // namespace

// The caller scales `column` and `rhs` so that squares are in range. Final residuals are below the tolerance and are recomputed
// at the end.
std::optional<Tensor> toeplitz_pcg_in_torch(const Tensor& column, const Tensor& rhs, double x_residual, double probe_residual) {
    const Corner corner(column);
    const Tensor definite = corner.mean_is_positive();
    const int64_t columns = rhs.size(-1);
    const std::vector<int64_t> x_shape{1, columns - 1}, probe_shape{1, 1};
    const auto device = column.device();
    const auto filled = [&](const std::vector<int64_t>& shape, double value) {
        return torch::stable::full(shape, value, ScalarType::Double, std::nullopt, device);
    };
    const Tensor tolerance = math::cat({filled(x_shape, x_residual), filled(probe_shape, probe_residual)}, -1);
    const Tensor twice_size = math::mul(math::sum(math::abs(column), -1, true), number(2));                // bounds ‖T‖
    const Tensor allowed = math::mul(math::mul(twice_size, tolerance), math::mul(twice_size, tolerance));  // squared
    const Tensor right = torch::stable::contiguous(math::transposed(rhs));

    Tensor x = math::zeros(right, {right.size(0), right.size(1), right.size(2)}), residual = right;
    Tensor step = corner.preconditioned(residual), direction = step;
    Tensor energy = product_of(residual, step);
    for (int checks = 0; checks < kMostSteps / kStepsPerCheck; ++checks) {
        for (int i = 0; i < kStepsPerCheck; ++i) {
            const Tensor image = corner.times(direction);
            const Tensor curvature = product_of(direction, image);
            // A converged right-hand side (zero, for example) does not change; if the curvature of another vanishes, T is not
            // definite and values overflow.
            const Tensor length = math::div(energy, math::maximum(curvature, number(kMinDivisor)));
            x = math::add(x, math::mul(length, direction));
            residual = torch::stable::subtract(residual, math::mul(length, image));
            step = corner.preconditioned(residual);
            const Tensor before = energy;
            energy = product_of(residual, step);
            direction = math::add(step, math::mul(math::div(energy, math::maximum(before, number(kMinDivisor))), direction));
        }
        const Tensor bound = math::mul(allowed, squared_norm(x));
        const Tensor small = math::all(math::less_equal(squared_norm(residual), bound));
        const auto [is_small, is_definite] = read(small, math::both(definite, math::all(math::isfinite(energy))));
        if (!is_definite) return std::nullopt;
        if (!is_small) continue;
        const Tensor rest = torch::stable::subtract(right, corner.times(x));
        const Tensor exact = math::all(math::less_equal(squared_norm(rest), math::mul(bound, number(4))));
        return read(exact, exact).first ? std::optional<Tensor>(math::transposed(x)) : std::nullopt;
    }
    return std::nullopt;
}

}  // namespace gdn_cuda::structured
