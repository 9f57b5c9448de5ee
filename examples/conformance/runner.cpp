// Tests the rope of rope.hpp with the vectors:
//   g++ -std=c++17 -O1 -o runner runner.cpp && ./runner [folder of the vectors]
// Exit status 0: every number is as near as its group allows.
#include <cstdio>

#include "rope.hpp"

static long checked = 0, wrong = 0;

static void check(const std::string& where, double found, double expected, double allowed) {
  ++checked;
  if (std::fabs(found - expected) <= allowed) return;  // a NaN is not
  if (++wrong <= 20) std::printf("%s: %.9g, expected %.9g\n", where.c_str(), found, expected);
}

static void check_case(const std::string& name, const Json& test, const Json& tolerance) {
  const Json& rope = test["rope"];
  const Json& given = test["positions"];
  const bool several = given[0][0].kind == Json::Array;
  const size_t axes = several ? given.size() : 1;
  auto row = [&](size_t axis, size_t b) -> const Json& { return several ? given[axis][b] : given[b]; };
  double length = 0;
  for (size_t a = 0; a < axes; ++a)
    for (size_t b = 0; b < test["cos"].size(); ++b)
      for (const Json& p : row(a, b).items) length = std::max(length, p.number + 1);

  const double absolute = tolerance["absolute"].number, per_radian = tolerance["per_radian"].number;
  const double relative = tolerance["relative"].number, size = magnitude(rope);
  const Numbers radians = frequencies(rope, length);
  const auto axis = axis_of_pair(rope);
  for (size_t i = 0; i < radians.size(); ++i) {
    const double expected = test["inv_freq"]["float"][i].number;
    check(name + ", pair " + std::to_string(i), radians[i], expected, relative * expected);
  }
  check(name + ", magnitude", size, test["attention_factor"]["float"].number, relative);

  for (size_t b = 0; b < test["cos"].size(); ++b) {
    for (size_t s = 0; s < test["cos"][b].size(); ++s) {
      Numbers position, allowed;
      for (size_t a = 0; a < axes; ++a) position.push_back(row(a, b)[s].number);
      const auto [cos, sin] = cos_sin(rope, position, length);
      const std::string where = name + ", row " + std::to_string(b) + ", token " + std::to_string(s);
      for (size_t i = 0; i < radians.size(); ++i) {
        allowed.push_back(size * (absolute + per_radian * std::fabs(radians[i] * position[axis[i]])));
        check(where + ", cos", cos[i], test["cos"][b][s][i].number, allowed[i]);
        check(where + ", sin", sin[i], test["sin"][b][s][i].number, allowed[i]);
      }
      const double most = 2 * *std::max_element(allowed.begin(), allowed.end());
      for (const std::string x : {"q", "k"}) {
        const Json& rotation = test["rotation"];
        const double scale = rotation.has(x + "_scale") ? rotation[x + "_scale"].number : 1.0;
        for (size_t h = 0; h < rotation[x][b].size(); ++h) {
          Numbers token;
          for (const Json& value : rotation[x][b][h][s].items) token.push_back(scale * value.number);
          const Numbers turned = rotate(rope, token, cos, sin);
          for (size_t i = 0; i < turned.size(); ++i)
            check(where + ", " + x, turned[i], rotation[x + "_expected"][b][h][s][i].number, most);
        }
      }
    }
  }
}

int main(int count, char** words) {
  const std::string folder = count > 1 ? words[1] : "../../conformance";
  const Json index = read_json(folder + "/index.json");
  long cases = 0;
  for (const Json& name : index["groups"].items) {
    const Json group = read_json(folder + "/" + name.text + ".json");
    bool rotates = false;
    for (const Json& function : group["functions"].items) rotates |= function.text == "rotate";
    if (!rotates) continue;
    for (const Json& test : group["cases"].items) {
      check_case(name.text + "/" + test["id"].text, test, group["tolerance"]);
      ++cases;
    }
  }
  std::printf("vectors %s of %s: %ld cases, %ld numbers, %ld wrong\n", index["version"].text.c_str(),
              index["date"].text.c_str(), cases, checked, wrong);
  return wrong || !checked ? 1 : 0;
}
