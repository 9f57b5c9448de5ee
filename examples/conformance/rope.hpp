// A small rope: what a config means is in the "rope" of each case.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "json.hpp"

using Numbers = std::vector<double>;
constexpr double kPi = 3.14159265358979323846;

inline Numbers ladder(double base, int dims) {
  Numbers out;
  for (int i = 0; i < dims / 2; ++i) out.push_back(std::pow(base, -2.0 * i / dims));
  return out;
}

inline Numbers frequencies(const Json& rope, double length) {
  const Json& s = rope["scaling"];
  const std::string& kind = s["type"].text;
  const int dims = static_cast<int>(rope["rotary_dim"].number);
  const double theta = rope["theta"].number;
  Numbers w = ladder(theta, dims);
  const double factor = s.has("factor") ? s["factor"].number : 1.0;
  const double trained = s.has("original_length") ? s["original_length"].number : 0.0;
  if (kind == "linear") {
    for (double& each : w) each /= factor;
  } else if (kind == "dynamic") {
    const double stretch = factor * std::max(length, trained) / trained - (factor - 1);
    return ladder(theta * std::pow(stretch, dims / (dims - 2.0)), dims);
  } else if (kind == "llama3") {
    const double low = s["low_freq_factor"].number, high = s["high_freq_factor"].number;
    for (double& each : w) {
      const double turns = trained * each / (2 * kPi);
      const double keep = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      each = keep * each + (1 - keep) * each / factor;
    }
  } else if (kind == "yarn") {
    auto pair_with = [&](double turns) {
      return dims * std::log(trained / (2 * kPi * turns)) / (2 * std::log(theta));
    };
    double low = pair_with(s["beta_fast"].number), high = pair_with(s["beta_slow"].number);
    if (s["truncate"].number != 0) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, dims - 1.0);
    if (low == high) high += 0.001;
    for (size_t i = 0; i < w.size(); ++i) {
      const double divided = std::clamp((i - low) / (high - low), 0.0, 1.0);
      w[i] = w[i] * (1 - divided) + w[i] / factor * divided;
    }
  } else if (kind == "longrope") {
    const Json& factors = s[length > trained ? "long_factor" : "short_factor"];
    for (size_t i = 0; i < w.size(); ++i) w[i] /= factors[i].number;
  } else if (kind == "proportional") {
    const size_t turning = static_cast<size_t>(s["fraction"].number * dims / 2);
    for (size_t i = 0; i < w.size(); ++i) w[i] = i < turning ? w[i] / factor : 0.0;
  }
  return w;
}

inline double magnitude(const Json& rope) {
  const Json& s = rope["scaling"];
  const std::string& kind = s["type"].text;
  if (kind != "yarn" && kind != "longrope") return 1.0;
  if (s["attention_factor"].kind == Json::Number) return s["attention_factor"].number;
  const double factor = s["factor"].number;
  if (factor <= 1) return 1.0;
  if (kind == "longrope") {
    return std::sqrt(1 + std::log(factor) / std::log(s["original_length"].number));
  }
  auto m = [&](double weight) { return 0.1 * weight * std::log(factor) + 1; };
  if (s["mscale"].empty() || s["mscale_all_dim"].empty()) return m(1);
  return m(s["mscale"].number) / m(s["mscale_all_dim"].number);
}

inline std::vector<size_t> axis_of_pair(const Json& rope) {
  const size_t pairs = static_cast<size_t>(rope["rotary_dim"].number) / 2;
  std::vector<size_t> axis(pairs, 0);
  const Json& axes = rope["axes"];
  if (axes.kind == Json::Null) return axis;
  const Json& sections = axes["sections"];
  if (axes["order"].text == "chunked") {
    size_t pair = 0;
    for (size_t a = 0; a < sections.size(); ++a)
      for (int i = 0; i < sections[a].number; ++i) axis.at(pair++) = a;
  } else {
    for (size_t a : {1, 2})
      for (size_t i = a; i < 3 * sections[a].number; i += 3) axis.at(i) = a;
  }
  return axis;
}

// position: one coordinate for each axis
inline std::pair<Numbers, Numbers> cos_sin(const Json& rope, const Numbers& position, double length) {
  const auto axis = axis_of_pair(rope);
  const double size = magnitude(rope);
  Numbers cos, sin, w = frequencies(rope, length);
  for (size_t i = 0; i < w.size(); ++i) {
    const double angle = w[i] * position.at(axis[i]);
    cos.push_back(size * std::cos(angle));
    sin.push_back(size * std::sin(angle));
  }
  return {cos, sin};
}

inline Numbers rotate(const Json& rope, const Numbers& x, const Numbers& cos, const Numbers& sin) {
  Numbers out = x;
  const bool half = rope["layout"].text == "half";
  const size_t start = static_cast<size_t>(rope["rotary_start"].number);
  for (size_t i = 0; i < cos.size(); ++i) {
    const size_t a = start + (half ? i : 2 * i), b = half ? a + cos.size() : a + 1;
    out[a] = cos[i] * x[a] - sin[i] * x[b];
    out[b] = sin[i] * x[a] + cos[i] * x[b];
  }
  return out;
}
